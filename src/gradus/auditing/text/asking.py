"""What all checks of one-turn tasks stand on: the form of right answers, what gold and wrong answers earn, and what failed when answers were asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from random import Random
from statistics import fmean, median_high

from gradus.auditing.text.blind import Operators, another_gold
from gradus.auditing.text.gold import Gold, Others
from gradus.auditing.text.operators import CANARIES
from gradus.auditing.text.rates import Base, Probe, Rate, rate
from gradus.auditing.text.scoring import AnswerScore, Scorer
from gradus.auditing.text.source import SLOT, read_source
from gradus.auditing.text.tasks import TASKS, Functions, TextSubject, TextTask
from gradus.core import child_rng
from gradus.sandbox.command import sandbox_works

Forms = Mapping[str, tuple[str, str]]  # what stands before and behind an answer, by name
Row = tuple[str, TextTask, str]  # the name of an operator, a task, and an answer
Probes = dict[str, list[Probe]]  # by the name of the operator

# What an answer may stand behind: a fence, a tag, a box, hashes, or words with a colon as "The final answer:".
_MARKS = re.compile(r"```\w*\n|<[A-Za-z_]\w*>|\\boxed\{|#{2,}|\b[A-Z][a-z]+(?: [a-z]+){0,3}:")
_MOST_FORMS = 12  # of the grader's source
FORMS: Forms = {  # how a right answer may be written as a completion
    "bare": ("", ""),
    "in <answer> tags": ("<answer>", "</answer>"),
    "in <answer> tags after <think>": (
        "<think>\nso it is\n</think>\n<answer>\n",
        "\n</answer>",
    ),
    "in <answer> tags after <reasoning>": (
        "<reasoning>\nso it is\n</reasoning>\n<answer>\n",
        "\n</answer>\n",
    ),
    "in \\boxed{}": ("\\boxed{", "}"),
    "after ####": ("#### ", ""),
    "after 'The answer is'": ("The answer is ", ""),
}


def forms(functions: Functions) -> Forms:
    """The usual forms, and those that the patterns and tags in the grader's source ask for."""
    candidates: dict[str, tuple[str, str]] = {}
    for word in read_source(functions).words:
        if word.count(SLOT) == 1 and word != SLOT:
            before, _, after = word.partition(SLOT)
            candidates.setdefault(f"as {before}...{after}", (before, after))
        for tag in re.findall(r"<([A-Za-z_]\w*)>", word):
            candidates.setdefault(f"in <{tag}> tags", (f"<{tag}>", f"</{tag}>"))
    usual = set(FORMS.values())
    new = [(name, form) for name, form in candidates.items() if form not in usual]
    return {**FORMS, **dict(new[:_MOST_FORMS])}


def in_blocks(tasks: Sequence[TextTask]) -> list[TextTask] | None:
    """The tasks with gold cut to the answer, if their golds are whole completions with a mark that all have; else None.

    What stands around the block is kept if it is the same in all golds. Otherwise only the mark is: reasoning that is written for one task may
    hold its answer.
    """
    golds = golds_of(tasks)
    others = Others(golds=golds)
    parsed = (Gold(task=task, others=others) for task in tasks)
    # Marks within a program or an object belong to the answer.
    if len(set(golds)) < 2 or any(gold.is_program or gold.object for gold in parsed):
        return None
    marks = set(_MARKS.findall(golds[0]))
    for gold in golds:
        marks = {mark for mark in marks if mark in gold}
    if not marks:
        return None
    mark = max(marks, key=golds[0].rindex)
    cuts = [_cut(gold, mark) for gold in golds]
    befores, blocks, afters = map(set, zip(*cuts, strict=True))
    if len(blocks) < 2 or not all(map(str.strip, blocks)):
        return None
    shortened: list[TextTask] = []
    for task, (before, block, after) in zip(tasks, cuts, strict=True):
        if len(befores) > 1:
            before = mark + before[len(before.rstrip()) :]
        if len(afters) > 1:
            after = _closing(mark)
        shortened.append(replace(task, gold=block, before=task.before + before, after=after + task.after))
    return shortened


def _closing(mark: str) -> str:
    """The sign that closes a block, empty if the mark has none."""
    if mark.startswith("<"):
        return f"</{mark[1:]}"
    if mark.startswith("```"):
        return "\n```"
    if mark.endswith("{"):
        return "}"
    return ""


def _cut(gold: str, mark: str) -> tuple[str, str, str]:
    """The text up to the last mark and the space behind it, the block, and what closes it with all that follows.

    What no sign closes ends with its line. The last brace closes a box, for there are others in a formula.
    """
    start = gold.rindex(mark) + len(mark)
    behind = gold[start:].lstrip()
    start = len(gold) - len(behind)
    closing = _closing(mark) or "\n"
    if closing == "}":
        end = behind.rfind(closing)
    else:
        end = behind.find(closing)
    block = behind[: end if end >= 0 else None].rstrip()
    return gold[:start], block, behind[len(block) :]


CALLS = 55  # that a task costs, about
DECLARED = "as declared"
_FORM_TASKS = 6
LEAST_TASKS = 12
_FEWEST = 4  # tasks on which an operator is asked, however slow the grader
_MOST = 0.7  # of the time of a check, for the first of its steps
_PATIENCE = 0.02  # of the time
_LONG = 200  # characters, of which a call may take long by itself
_LONGER = 20  # times as long as the usual call: then it is the answer's length that costs
# Which share of the time may be spent when a check's answers are asked; what a check leaves is the next one's. Hostile answers come last:
# a parser may take seconds for each of a few of them.
_UNTIL = {
    "gold": 0.25,
    "files and processes": 0.4,
    "blind answers": 0.55,
    "reflexes": 0.65,
    "the source": 0.75,
    "wrong answers": 0.8,
    "right answers": 0.9,
    "sanity": 0.95,
    "hostile answers": 1.0,
}


@dataclass(kw_only=True)
class Ground:
    """The common ground of all checks, and a log of what failed while answers were asked."""

    subject: TextSubject
    scorer: Scorer
    tasks: Sequence[TextTask]
    others: Others
    seed: int = 0
    bases: Mapping[str, Base] = field(default_factory=dict[str, Base])  # what gold, wrong answers and silence earn
    form: str = DECLARED  # how gold is written
    effort: float = 1.0  # the share of tasks that a slow grader leaves time for
    executed: Sequence[str] = ()  # hostile answers that ran
    skipped: Counter[str] = field(default_factory=Counter[str])  # answers of each check that were not asked
    shortened: dict[str, int] = field(default_factory=dict[str, int])  # check -> the tasks that there was time for
    longest: float = inf  # characters of the shortest answer that took too long to ask such answers often
    probes: list[Probe] = field(default_factory=list[Probe])  # in the order in which they were asked

    @cached_property
    def golds(self) -> Mapping[str, Gold]:
        """The right answer of each task, by its key."""
        return {task.key: Gold(task=task, others=self.others) for task in self.tasks}

    @property
    def guess(self) -> float:
        """The share of tasks whose gold is the most frequent one."""
        return max(self.others.counts.values(), default=0) / max(1, len(self.others.golds))

    @property
    def top(self) -> float:
        """The most that gold earns."""
        return max((base.gold for base in self.bases.values()), default=0.0)

    @property
    def span(self) -> float:
        """The range of rewards."""
        return self.top - min((min(base.wrong, base.silence) for base in self.bases.values()), default=0.0)

    @property
    def scored(self) -> int:
        """The number of answers that got a reward."""
        return sum(probe.value is not None for probe in self.probes)

    @property
    def errors(self) -> list[Probe]:
        """Answers on which the grader raised. A call that was cut off says nothing of what it raises; it is a finding of its own."""
        scores = ((probe, probe.score) for probe in self.probes)
        return [probe for probe, score in scores if score.error and not score.hung and not score.skipped]

    @property
    def hung(self) -> list[Probe]:
        """Answers on which the grader was cut off."""
        return [probe for probe in self.probes if probe.score.hung]

    @property
    def is_usable(self) -> bool:
        """Gold earns more than some other answer, so that answers can be held against it."""
        return bool(self.bases) and self.span > 0

    @property
    def usable_tasks(self) -> list[TextTask]:
        """The tasks whose gold got a reward."""
        return [task for task in self.tasks if task.key in self.bases]

    def enter(self, check: str) -> None:
        """From now on answers of this check are asked."""
        self.scorer.allow(_UNTIL[check])

    def some(self, number: int) -> Sequence[TextTask]:
        """So many tasks, fewer if the grader is slow, more if more than the usual number was asked for."""
        more = max(1.0, len(self.subject.tasks) / TASKS)
        scaled = int(number * more * self.effort)
        return self.tasks[: max(4, scaled)]

    def ask(self, check: str, rows: Sequence[Row]) -> list[Probe]:
        """Probes of answers to tasks, each with the name of its operator."""
        scores = self.scorer.score([(task, task.completion(answer)) for _, task, answer in rows])
        return [self.write(check, row, score) for row, score in zip(rows, scores, strict=True)]

    def ask_each(
        self,
        check: str,
        operators: Operators,
        tasks: Sequence[TextTask],
    ) -> Probes:
        """Every operator on every task, task by task, so that each has had its turn if the time is over.

        An operator on whose answers the grader takes long is asked on fewer tasks. Short answers come first: a parser of formulas takes
        seconds for a thousand words, and then none as long are asked.
        """
        probes: Probes = {name: [] for name in operators}
        patience = dict.fromkeys(operators, self._patience)
        for task in self.in_time(check, tasks):
            rows: list[Row] = []
            for name, make in operators.items():
                answer = make(self.golds[task.key], self.rng(name, task)) if patience[name] > 0 else None
                if answer is not None:
                    rows.append((name, task, answer))
            # A grader that asks a server is asked at once.
            shortest_first = sorted(rows, key=lambda row: len(row[2]))
            parts = [rows] if self.subject.remote else [[row] for row in shortest_first]
            for part in parts:
                short = [row for row in part if len(row[2]) < self.longest]
                for probe in self.ask(check, short):
                    probes[probe.operator].append(probe)
                    # No single call, which may have waited for something else, uses all of it.
                    patience[probe.operator] -= min(probe.score.seconds, self._patience / 2)
        return probes

    def in_time(self, check: str, tasks: Sequence[TextTask]) -> Iterator[TextTask]:
        """The tasks, at least four of them; the rest are left out once a check has used most of its time."""
        started = self.scorer.spent
        most = started + _MOST * self.scorer.left
        for number, task in enumerate(tasks):
            # What wrong answers earn must be known of each task on which others are held against it.
            if number >= _FEWEST and self.scorer.spent > most and check != "gold":
                self.shortened[check] = number
                return
            yield task

    @property
    def _patience(self) -> float:
        """Seconds that the answers of one operator may take until it is asked on no further task."""
        return _PATIENCE * self.scorer.limit

    def write(self, check: str, row: Row, score: AnswerScore) -> Probe:
        """Logs the probe of a score."""
        operator, task, answer = row
        usual = self.scorer.spent / max(1, self.scorer.calls)
        if len(answer) > _LONG and score.seconds > max(self._patience, _LONGER * usual):
            self.longest = min(self.longest, len(answer))
        self.skipped[check] += score.skipped
        probe = Probe(check=check, operator=operator, task=task, answer=answer, score=score)
        self.probes.append(probe)
        return probe

    def unpacked(self, probe: Probe) -> Probe:
        """The probe without the form around its answer, if the answer alone earns as much."""
        task = probe.task
        (score,) = self.scorer.score([(task, probe.answer)])
        if score.value is not None and score.value >= probe.reward:
            return replace(probe, task=replace(task, before="", after=""))
        return probe

    def rng(self, operator: str, task: TextTask) -> Random:
        """Randomness that is keyed by operator and task."""
        return child_rng(self.seed, "audit", "text", operator, task.key)

    def rates(self, probes: Probes, guess: float) -> dict[str, Rate]:
        """The rates of operators by name, without those that apply to no task. ``guess``: see :func:`rate`."""
        rates = (rate(operator, rows, self.bases, self.span, guess=guess) for operator, rows in probes.items())
        return {rate.operator: rate for rate in rates if rate is not None}


def golds_of(tasks: Sequence[TextTask]) -> list[str]:
    """The gold answers of tasks that have one."""
    return [task.gold for task in tasks if task.gold]


def are_programs(tasks: Sequence[TextTask]) -> bool:
    """Returns True if the gold answers are Python programs: they define, import or print something."""
    others = Others(golds=[])
    return bool(tasks) and all(Gold(task=task, others=others).is_program for task in tasks[:LEAST_TASKS])


def begin(subject: TextSubject, scorer: Scorer, tasks: Sequence[TextTask], *, seed: int, unsafe: bool) -> Ground:
    """The ground before anything is asked.

    Gold is a foreign text like any other: all is asked in the sandbox if this machine has one, unless ``unsafe``.
    """
    scorer.confined = sandbox_works() and not subject.remote and not unsafe
    ground = Ground(subject=subject, scorer=scorer, tasks=tasks, others=Others(golds=golds_of(tasks)), seed=seed)
    ground.enter("gold")
    return ground


def prepare(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Ground:
    """Find the form of right answers, the time that there is, whether answers are executed, and the bases of all tasks."""
    # Of the other tasks nothing can be held against an answer.
    ground = begin(subject, scorer, [task for task in subject.tasks if task.gold], seed=seed, unsafe=unsafe)
    _write_in_best_form(ground)
    leave_out_tasks(ground)
    if scorer.confined or (unsafe and not subject.remote):
        ground.executed = executed_canaries(ground, ground.tasks)
    find_bases(ground)
    return ground


def leave_out_tasks(ground: Ground) -> None:
    """Leave out the tasks that there is no time for."""
    ground.effort = effort(ground.tasks, ground.scorer)
    ground.tasks = ground.tasks[: max(LEAST_TASKS, int(len(ground.tasks) * ground.effort))]


def effort(tasks: Sequence[TextTask], scorer: Scorer) -> float:
    """The share of the tasks that there is time for, by what a call costs at the median of gold answers."""
    seconds = [score.seconds for score in _ask_gold(tasks[:LEAST_TASKS], scorer) if not score.skipped]
    needed = median_high(seconds or [0.0]) * CALLS * len(tasks)
    # In rough steps, so that noise changes nothing.
    if needed < scorer.limit:
        return 1.0
    if needed < 2 * scorer.limit:
        return 0.5
    return 0.25


def _write_in_best_form(ground: Ground) -> None:
    """Write answers in the form in which gold earns most, the declared one if no other earns more.

    If the declared form earns the top of the range, no other is tried. Gold that is a whole completion is cut to its answer if it earns as much so.
    """
    subject, tasks = ground.subject, ground.tasks
    most = _earned(tasks, ground.scorer)
    candidates: Forms = {}
    if subject.range is None or most < subject.range[1] - 1e-9:
        candidates = forms(() if subject.remote else subject.functions)
    for name, (before, after) in candidates.items():
        written = [replace(task, before=before, after=after) for task in tasks]
        earned = _earned(written, ground.scorer)
        if earned > most + 1e-9:
            most = earned
            ground.form = name
            ground.tasks = written
    blocks = in_blocks(ground.tasks)
    if blocks and _earned(blocks, ground.scorer) >= most - 1e-9:
        ground.tasks = blocks
        ground.others = Others(golds=golds_of(blocks))


def _ask_gold(tasks: Sequence[TextTask], scorer: Scorer) -> list[AnswerScore]:
    """The scores of gold answers."""
    return scorer.score([(task, task.gold_completion) for task in tasks])


def _earned(tasks: Sequence[TextTask], scorer: Scorer) -> float:
    """The mean reward of gold on a few tasks; minus infinity if the grader fails on one."""
    scores = _ask_gold(tasks[:_FORM_TASKS], scorer)
    values = [score.value for score in scores if score.value is not None]
    if values and len(values) == len(scores):
        return sum(values) / len(values)
    return -inf


def executed_canaries(ground: Ground, tasks: Sequence[TextTask]) -> list[str]:
    """Finds out by code that writes a file whether answers are executed: the names of the answers that were."""
    scorer = ground.scorer
    rows: list[Row] = []
    for name, make in CANARIES.items():
        for task in tasks[:2]:
            answer = make(ground.golds[task.key], child_rng(ground.seed, name))
            rows.append((name, task, answer or ""))
    scores = scorer.fresh([(task, task.completion(answer)) for _, task, answer in rows])
    executed: dict[str, None] = {}
    for row, score in zip(rows, scores, strict=True):
        if score.hung or score.skipped:
            ground.write("hostile answers", row, score)
        if score.executed:
            executed[row[0]] = None
    # These hung on code, which says nothing of how the grader takes other answers.
    scorer.hangs = 0
    return list(executed)


def find_bases(ground: Ground) -> None:
    """Gold, silence and wrong answers of the right form, for every task."""
    gold = ground.ask("gold", [("gold", task, task.answer) for task in ground.tasks])
    paid = {probe.task.key: probe.value for probe in gold if probe.value is not None}
    bases: dict[str, Base] = {}
    # Two draws, whose randomness is keyed by these names: one wrong answer may be right by accident.
    for key, silence, wrong in earned_without_gold(ground, dict.fromkeys(("wrong 0", "wrong 1"), another_gold)):
        if key in paid:
            bases[key] = Base(gold=paid[key], wrong=fmean(wrong or [silence]), silence=silence)
    ground.bases = bases


def earned_without_gold(ground: Ground, operators: Operators) -> Iterator[tuple[str, float, Sequence[float]]]:
    """The key of each task, with what silence and each of some wrong answers earn."""
    silence = ground.ask("gold", [("silence", task, "") for task in ground.tasks])
    wrong: dict[str, list[float]] = {}
    for probes in ground.ask_each("gold", operators, ground.tasks).values():
        for probe in probes:
            if probe.value is not None:
                wrong.setdefault(probe.task.key, []).append(probe.value)
    for probe in silence:
        yield probe.task.key, probe.reward, wrong.get(probe.task.key, [])
