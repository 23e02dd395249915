"""What all checks of one-turn tasks stand on: the form of right answers, what gold and wrong answers earn, and what failed when answers were asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from random import Random
from typing import Any

from gradus.auditing.records import LEAST_EFFECT
from gradus.auditing.text.blind import Operator, another_gold
from gradus.auditing.text.gold import Gold, Others, states
from gradus.auditing.text.operators import CANARIES
from gradus.auditing.text.rates import Base, Probe, Rate, rate
from gradus.auditing.text.scoring import Score, Scorer
from gradus.auditing.text.source import SLOT, read_source
from gradus.auditing.text.tasks import TASKS, TextSubject, TextTask
from gradus.core import child_rng
from gradus.sandbox.command import sandbox_works

_MARKS = re.compile(r"<[A-Za-z_]\w*>|\\boxed\{|#{2,}|\b[A-Z][a-z]+(?: [a-z]+){0,3}:")
_MOST = 12
FORMS: Mapping[str, tuple[str, str]] = {  # how a right answer may be written as a completion
    "bare": ("", ""),
    "in <answer> tags": ("<answer>", "</answer>"),
    "in <answer> tags after <think>": ("<think>\nso it is\n</think>\n<answer>\n", "\n</answer>"),
    "in <answer> tags after <reasoning>": ("<reasoning>\nso it is\n</reasoning>\n<answer>\n", "\n</answer>\n"),
    "in \\boxed{}": ("\\boxed{", "}"),
    "after ####": ("#### ", ""),
    "after 'The answer is'": ("The answer is ", ""),
}


def forms(functions: Sequence[Callable[..., Any]]) -> Mapping[str, tuple[str, str]]:
    """The usual forms, and those that the patterns and tags in the grader's source ask for."""
    found = read_source(functions)
    own: dict[str, tuple[str, str]] = {}
    for word in found.words if found else ():
        if word.count(SLOT) == 1 and word != SLOT:
            before, after = word.split(SLOT)
            own.setdefault(f"as {before}...{after}", (before, after))
        for tag in re.findall(r"<([A-Za-z_]\w*)>", word):
            own.setdefault(f"in <{tag}> tags", (f"<{tag}>", f"</{tag}>"))
    known = set(FORMS.values())
    return {**FORMS, **dict([each for each in own.items() if each[1] not in known][:_MOST])}


def in_blocks(tasks: Sequence[TextTask]) -> list[TextTask] | None:
    """The tasks with gold cut to the answer, if their golds are whole completions with a mark that all have; else None.

    What stands around the block is kept if it is the same in all golds. Otherwise only the mark is: reasoning that is written for one task may
    hold its answer.
    """
    golds = [task.gold or "" for task in tasks]
    others = Others(golds=golds)
    parsed = [Gold(task=task, others=others) for task in tasks]
    if len(set(golds)) < 2 or any(each.is_program or each.object for each in parsed):
        return None
    marks = [mark for mark in dict.fromkeys(_MARKS.findall(golds[0])) if all(mark in gold for gold in golds)]
    if not marks:
        return None
    mark = max(marks, key=golds[0].rindex)
    cut = [_cut(gold, mark) for gold in golds]
    if not all(block.strip() for _, block, _ in cut) or len({block for _, block, _ in cut}) < 2:
        return None
    befores, afters = {before for before, _, _ in cut}, {after for _, _, after in cut}
    return [
        replace(
            task,
            gold=block,
            before=task.before + (before if len(befores) == 1 else mark + before[len(before.rstrip()) :]),
            after=(after if len(afters) == 1 else _closing(mark)) + task.after,
        )
        for task, (before, block, after) in zip(tasks, cut, strict=True)
    ]


def _closing(mark: str) -> str:
    return f"</{mark[1:]}" if mark.startswith("<") else "}" if mark.endswith("{") else ""


def _cut(gold: str, mark: str) -> tuple[str, str, str]:
    """The text up to the last mark and the space behind it, the block, and what closes it with all that follows.

    What no sign closes ends with its line. The last brace closes a box, for there are others in a formula.
    """
    start = gold.rindex(mark) + len(mark)
    start += len(gold[start:]) - len(gold[start:].lstrip())
    closing = _closing(mark) or "\n"
    end = gold.rfind(closing, start) if closing == "}" else gold.find(closing, start)
    block = gold[start : end if end >= 0 else len(gold)].rstrip()
    return gold[:start], block, gold[start + len(block) :]


CALLS = 55  # that a task costs, about
DECLARED = "as declared"
_FORM_TASKS = 6
_LEAST_TASKS = 12
_UNTIL = {  # which share of the time may be spent when a check's answers are asked; what a check leaves is the next one's
    "gold": 0.25,
    "hostile answers": 0.4,
    "files and processes": 0.5,
    "blind answers": 0.6,
    "reflexes": 0.7,
    "the source": 0.8,
    "wrong answers": 0.85,
    "right answers": 0.95,
    "sanity": 1.0,
}


@dataclass(kw_only=True)
class Ground:
    """The common ground of all checks, and a log of what failed while answers were asked.

    ``bases``: of each task, what gold, wrong answers and silence earn. ``span``: the range of rewards. ``unpaid``: gold that earned less than
    the most. ``form``: how gold is written. ``effort``: the share of tasks that a slow grader leaves time for. ``confined``: answers are
    asked in the sandbox. ``executed``: hostile answers that ran. ``sandbox_error``: why the grader scores nothing there.
    ``errors``: the grader raised; ``hung``: it was cut off. ``skipped``: answers of each check that were not asked. ``scored``: how many got a reward.
    """

    subject: TextSubject
    scorer: Scorer
    tasks: Sequence[TextTask]
    others: Others
    seed: int = 0
    bases: Mapping[str, Base] = field(default_factory=dict[str, Base])
    span: float = 0.0
    unpaid: Sequence[Probe] = ()
    form: str = DECLARED
    effort: float = 1.0
    confined: bool = False
    executed: Sequence[str] = ()
    sandbox_error: str = ""
    errors: list[Probe] = field(default_factory=list[Probe])
    hung: list[Probe] = field(default_factory=list[Probe])
    skipped: Counter[str] = field(default_factory=Counter[str])
    scored: int = 0

    @cached_property
    def golds(self) -> Mapping[str, Gold]:
        """The right answer of each task, by its key."""
        return {task.key: Gold(task=task, others=self.others) for task in self.tasks}

    @property
    def guess(self) -> float:
        """The share of tasks whose gold is the most frequent one."""
        return self.others.counts.most_common(1)[0][1] / len(self.others.golds) if self.others.golds else 0.0

    @property
    def is_usable(self) -> bool:
        """Gold earns more than some other answer, so that answers can be held against it."""
        return bool(self.bases) and self.span > 0

    def enter(self, check: str) -> None:
        """From now on answers of this check are asked."""
        self.scorer.allow(_UNTIL[check])

    def some(self, number: int) -> Sequence[TextTask]:
        """So many tasks, fewer if the grader is slow, more if more than the usual number was asked for."""
        more = max(1.0, len(self.subject.tasks) / TASKS)
        return self.tasks[: max(4, int(number * more * self.effort))]

    def ask(self, check: str, rows: Sequence[tuple[str, TextTask, str]]) -> list[Probe]:
        """Probes of answers to tasks, each with the name of its operator."""
        scores = self.scorer.score([(task, task.whole(answer)) for _, task, answer in rows])
        return [self.write(check, *row, score) for row, score in zip(rows, scores, strict=True)]

    def ask_each(
        self, check: str, operators: Mapping[str, Operator], tasks: Sequence[TextTask]
    ) -> dict[str, list[Probe]]:
        """Every operator on every task, task by task, so that each has had its turn if the time is over."""
        probes: dict[str, list[Probe]] = {name: [] for name in operators}
        rows = [
            (name, task, answer)
            for task in tasks
            for name, make in operators.items()
            if (answer := make(self.golds[task.key], self.rng(name, task))) is not None
        ]
        for probe in self.ask(check, rows):
            probes[probe.operator].append(probe)
        return probes

    def write(self, check: str, operator: str, task: TextTask, answer: str, score: Score) -> Probe:
        probe = Probe(
            operator=operator,
            task=task,
            answer=answer,
            value=score.value,
            right=states(answer, task.gold or ""),
            error=score.error,
            skipped=score.skipped,
        )
        self.skipped[check] += score.skipped
        self.scored += score.value is not None
        if score.hung:
            self.hung.append(probe)
        elif score.error and not score.skipped:
            self.errors.append(probe)
        return probe

    def rng(self, operator: str, task: TextTask) -> Random:
        return child_rng(self.seed, "audit", "text", operator, task.key)

    def rate(self, operator: str, probes: Sequence[Probe]) -> Rate | None:
        return rate(operator, probes, self.bases, self.span, least=LEAST_EFFECT, guess=self.guess)


def are_programs(tasks: Sequence[TextTask]) -> bool:
    """Returns True if the gold answers are Python programs: they define, import or print something."""
    others = Others(golds=[])
    return bool(tasks) and all(Gold(task=task, others=others).is_program for task in tasks[:_LEAST_TASKS])


def prepare(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Ground:
    """Find the form of right answers, the time that there is, whether answers are executed, and the bases of all tasks.

    The answers that an executing grader would run are asked first, in the sandbox, and decide where the rest is asked.
    """
    tasks = [task for task in subject.tasks if task.gold]
    scorer.allow(_UNTIL["gold"])
    form, tasks = _in_best_form(tasks, scorer, subject)
    share = effort(tasks, scorer)
    ground = Ground(
        subject=subject,
        scorer=scorer,
        tasks=tasks[: max(_LEAST_TASKS, int(len(tasks) * share))],
        others=Others(golds=[task.gold or "" for task in tasks]),
        seed=seed,
        form=form,
        effort=share,
        confined=sandbox_works() and not subject.remote,
    )
    if ground.confined or (unsafe and not subject.remote):
        _ask_canaries(ground)
    find_bases(ground)
    return ground


def effort(tasks: Sequence[TextTask], scorer: Scorer) -> float:
    """The share of the tasks that there is time for, by what a call costs at the median of gold answers."""
    scores = scorer.score([(task, task.whole(task.gold or "")) for task in tasks[:_LEAST_TASKS]])
    seconds = sorted(score.seconds for score in scores if not score.skipped)
    needed = seconds[len(seconds) // 2] * CALLS * len(tasks) if seconds else 0.0
    # In rough steps, so that noise changes nothing.
    return 1.0 if needed < scorer.limit else 0.5 if needed < 2 * scorer.limit else 0.25


def _in_best_form(tasks: Sequence[TextTask], scorer: Scorer, subject: TextSubject) -> tuple[str, list[TextTask]]:
    """The form in which gold earns most, the declared one if no other earns more, and the tasks with it.

    If the declared form earns the top of the range, no other is tried. Gold that is a whole completion is cut to its answer if it earns as much so.
    """
    best, kept, most = DECLARED, list(tasks), _earned(tasks, scorer)
    at_top = subject.range is not None and most >= subject.range[1] - 1e-9
    others = {} if at_top else forms(() if subject.remote else subject.functions)
    for name, (before, after) in others.items():
        written = [replace(task, before=before, after=after) for task in tasks]
        earned = _earned(written, scorer)
        if earned > most + 1e-9:
            best, kept, most = name, written, earned
    blocks = in_blocks(kept)
    return best, blocks if blocks and _earned(blocks, scorer) >= most - 1e-9 else kept


def _earned(tasks: Sequence[TextTask], scorer: Scorer) -> float:
    """The mean reward of gold on a few tasks; minus infinity if the grader fails on one."""
    scores = scorer.score([(task, task.whole(task.gold or "")) for task in tasks[:_FORM_TASKS]])
    known = [score.value for score in scores if score.value is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else float("-inf")


def _ask_canaries(ground: Ground) -> None:
    """Finds out by code that writes a file whether answers are executed. If so, all answers are asked in the sandbox."""
    scorer, tasks = ground.scorer, ground.tasks[:2]
    rows = [
        (name, task, make(ground.golds[task.key], child_rng(ground.seed, name)) or "")
        for name, make in CANARIES.items()
        for task in tasks
    ]
    rows += [("gold", task, task.gold or "") for task in tasks]
    scores = scorer.fresh([(task, task.whole(answer)) for _, task, answer in rows], confined=ground.confined)
    for row, score in zip(rows, scores, strict=True):
        if score.hung or score.skipped:
            ground.write("hostile answers", *row, score)
    ground.executed = list({row[0]: None for row, score in zip(rows, scores, strict=True) if score.executed})
    scorer.hangs = 0
    scorer.confined = ground.confined and bool(ground.executed)
    errors = [score.error or "" for score in scores if score.value is None and not score.skipped]
    if errors and ground.confined and len(errors) == len(scores) and not ground.executed:
        ground.sandbox_error = errors[-1]  # on gold too: it is the sandbox, not the answers


def find_bases(ground: Ground) -> None:
    """Gold, silence and wrong answers of the right form, for every task."""
    gold = ground.ask("gold", [("gold", task, task.gold or "") for task in ground.tasks])
    silence = ground.ask("gold", [("silence", task, "") for task in ground.tasks])
    drawn = ground.ask_each("gold", dict.fromkeys(("wrong 0", "wrong 1"), another_gold), ground.tasks)
    wrong: dict[str, list[float]] = {}
    for each in chain(*drawn.values()):
        if each.value is not None:
            wrong.setdefault(each.task.key, []).append(each.value)
    bases: dict[str, Base] = {}
    for right, nothing in zip(gold, silence, strict=True):
        if right.value is not None:
            floor = nothing.value if nothing.value is not None else 0.0
            own = wrong.get(right.task.key) or [floor]
            bases[right.task.key] = Base(gold=right.value, wrong=sum(own) / len(own), silence=floor)
    top = max((base.gold for base in bases.values()), default=0.0)
    ground.bases = bases
    ground.span = top - min((min(base.wrong, base.silence) for base in bases.values()), default=0.0)
    least = top - 0.1 * ground.span
    ground.unpaid = [each for each in gold if not each.skipped and (each.value is None or each.value < least)]
