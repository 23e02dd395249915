"""Probing the grader of one-turn tasks: which answers are asked, and on which tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradus.auditing.text.blind import BLIND, REFLEXES, Operator, another_gold
from gradus.auditing.text.forms import DECLARED, in_best_form
from gradus.auditing.text.grader_process import Score
from gradus.auditing.text.hostile import CANARIES, HOSTILE
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.programs import are_programs, ask_programs
from gradus.auditing.text.rates import Base, Probe, Rate, rate
from gradus.auditing.text.rewritings import EQUIVALENT
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.shapes import Others, states
from gradus.auditing.text.tasks import TASKS, TextSubject, TextTask, share_in_time
from gradus.core import child_rng

LEAST = 0.1  # of the range: the least effect
_FIRST = 12  # tasks on which every blind answer is tried; the rest judge the best of them
_MUTATED = 24
_FORMS = 16
_KEPT = 6
_LEAST_TASKS = 12
CALLS = 55  # that a task costs, about
_UNTIL = {  # which share of the time may be spent when a check's answers are asked; what a check leaves is the next one's
    "gold": 0.25,
    "hostile answers": 0.4,
    "files and processes": 0.5,
    "blind answers": 0.6,
    "reflexes": 0.7,
    "wrong answers": 0.85,
    "right answers": 0.95,
    "sanity": 1.0,
}


@dataclass
class Probes:
    """All that was asked and what came of it.

    ``bases``: by task. ``blind`` and ``reflexes``: rates on tasks that did not choose them. ``tried``: how many answers each check chose from. ``wrong``: operator
    -> its probes (one a task; the lowest reward of several forms). ``errors``: answers on which the grader raised or hung.
    ``unscored``: checks whose answers the grader cannot score in the sandbox, and what it says. ``rehashed``: answers whose reward changes with PYTHONHASHSEED, ``batched``: those that earn something else
    in one call with answers to other tasks. ``logged``: what a grader that asks a server logged. ``answers``: how many it was asked. ``scored``: how many of the probes got a reward. ``times``: seconds of each
    call. ``grown``: MiB by which the grader's process kept growing. ``form``: how gold is written. ``effort``: the share of tasks that a slow grader leaves time for. ``skipped``: answers of each check
    that were not asked, ``stopped`` says why.
    """

    subject: TextSubject
    tasks: Sequence[TextTask]
    others: Others
    bases: dict[str, Base] = field(default_factory=dict)
    span: float = 0.0
    unpaid: list[Probe] = field(default_factory=list)
    blind: list[Rate] = field(default_factory=list)
    reflexes: list[Rate] = field(default_factory=list)
    evolved: list[Rate] = field(default_factory=list)
    programs: tuple[list[Rate], list[Probe]] | None = None
    unscored: dict[str, str] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[Probe]] = field(default_factory=dict)
    forms: dict[str, list[Probe]] = field(default_factory=dict)
    errors: list[Probe] = field(default_factory=list)
    hung: list[Probe] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    logged: Mapping[str, Sequence[float]] = field(default_factory=dict[str, list[float]])
    answers: int = 0
    scored: int = 0
    times: Sequence[float] = ()
    grown: float = 0.0
    confined: bool = False
    changed: list[tuple[Probe, float | None]] = field(default_factory=list)
    rehashed: list[tuple[Probe, float | None]] = field(default_factory=list)
    batched: list[tuple[Probe, float | None]] = field(default_factory=list)
    form: str = DECLARED
    effort: float = 1.0
    stage: str = "gold"
    skipped: Counter[str] = field(default_factory=Counter)
    stopped: str = ""

    @property
    def guess(self) -> float:
        """The share of tasks whose gold is the most frequent one."""
        return self.others.counts.most_common(1)[0][1] / len(self.others.golds) if self.others.golds else 0.0


def probe(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Probes:
    """Ask everything. The answers that an executing grader would run come first, in the sandbox, and decide where the rest is asked."""
    tasks = [task for task in subject.tasks if task.gold]
    asked = Probes(subject=subject, tasks=tasks, others=Others(golds=[task.gold or "" for task in tasks]))
    _enter(asked, scorer, "gold")
    asked.form, tasks = in_best_form(tasks, scorer, top=subject.range[1] if subject.range else None)
    asked.effort = _effort(tasks, scorer)
    asked.tasks = tasks = tasks[: max(_LEAST_TASKS, int(len(tasks) * asked.effort))]
    _ask_canaries(asked, scorer, seed, unsafe)
    _ask_bases(asked, scorer, seed)
    if not asked.bases or asked.span <= 0:
        return asked
    _enter(asked, scorer, "hostile answers")
    _ask_each(asked, scorer, HOSTILE, tasks[:1], seed)
    if are_programs(tasks) and (asked.confined or unsafe):
        _enter(asked, scorer, "files and processes")
        asked.programs = ask_programs(asked, scorer)
    first = _some(asked, _FIRST)
    rest = tasks[len(first) :]
    _enter(asked, scorer, "blind answers")
    asked.blind = _chosen(asked, scorer, BLIND, first, rest, seed)
    _enter(asked, scorer, "reflexes")
    asked.reflexes = _chosen(asked, scorer, REFLEXES, first, rest, seed)
    _enter(asked, scorer, "wrong answers")
    _ask_wrong(asked, scorer, seed)
    _enter(asked, scorer, "right answers")
    makers = {name: make for name, (make, _) in EQUIVALENT.items()}
    asked.forms = _ask_each(asked, scorer, makers, _some(asked, _FORMS), seed)
    _enter(asked, scorer, "sanity")
    _ask_again(asked, scorer, seed)
    return asked


def _enter(asked: Probes, scorer: Scorer, check: str) -> None:
    asked.stage = check
    scorer.allow(_UNTIL[check])


def _effort(tasks: Sequence[TextTask], scorer: Scorer) -> float:
    """The share of the tasks that there is time for, by what a call costs at the median of gold answers."""
    scores = scorer.score([(task, task.whole(task.gold or "")) for task in tasks[:_LEAST_TASKS]])
    seconds = sorted(score.seconds for score in scores if not score.skipped)
    return share_in_time(seconds[len(seconds) // 2] * CALLS * len(tasks), scorer.limit) if seconds else 1.0


def _some(asked: Probes, number: int) -> Sequence[TextTask]:
    """So many tasks, fewer if the grader is slow, more if more than the usual number was asked for."""
    more = max(1.0, len(asked.subject.tasks) / TASKS)
    return asked.tasks[: max(4, int(number * more * asked.effort))]


def _ask_each(
    asked: Probes, scorer: Scorer, operators: Mapping[str, Operator], tasks: Sequence[TextTask], seed: int
) -> dict[str, list[Probe]]:
    """Every operator on every task, task by task, so that each has had its turn if the time is over."""
    rows = [
        (name, task, answer)
        for task in tasks
        for name, make in operators.items()
        if (answer := make(task, asked.others, child_rng(seed, "audit", "text", name, task.key))) is not None
    ]
    scores = scorer.score([(task, task.whole(answer)) for _, task, answer in rows])
    scored = list(zip(rows, scores, strict=True))
    return {
        name: [_probe(asked, name, task, answer, score) for (own, task, answer), score in scored if own == name]
        for name in operators
    }


def _scored(asked: Probes, scorer: Scorer, name: str, rows: Sequence[tuple[TextTask, str]]) -> list[Probe]:
    scores = scorer.score([(task, task.whole(answer)) for task, answer in rows])
    return [_probe(asked, name, task, answer, score) for (task, answer), score in zip(rows, scores, strict=True)]


def _probe(asked: Probes, name: str, task: TextTask, answer: str, score: Score) -> Probe:
    probe = Probe(
        operator=name,
        task=task,
        answer=answer,
        value=score.value,
        right=states(answer, task.gold or ""),
        error=score.error,
        skipped=score.skipped,
    )
    asked.skipped[asked.stage] += score.skipped
    asked.scored += score.value is not None
    if score.hung:
        asked.hung.append(probe)
    elif score.error and not score.skipped:
        asked.errors.append(probe)
    return probe


def _ask_canaries(asked: Probes, scorer: Scorer, seed: int, unsafe: bool) -> None:
    asked.confined = scorer.can_confine() and not asked.subject.remote
    if not asked.confined and (asked.subject.remote or not unsafe):
        return
    rows = [
        (name, task, make(task, asked.others, child_rng(seed, name)) or "")
        for name, make in CANARIES.items()
        for task in asked.tasks[:2]
    ]
    rows += [("gold", task, task.gold or "") for task in asked.tasks[:2]]
    asked.stage = "hostile answers"  # which they belong to
    scores = scorer.fresh([(task, task.whole(answer)) for _, task, answer in rows], confined=asked.confined)
    for (name, task, answer), score in zip(rows, scores, strict=True):
        if score.hung or score.skipped:
            _probe(asked, name, task, answer, score)
        if score.executed and name not in asked.executed:
            asked.executed.append(name)
    errors = [score.error for score in scores if score.value is None and not score.skipped]
    all_failed = bool(errors) and len(errors) == len(scores)  # on gold too: it is the sandbox, not the answers
    if asked.confined and all_failed and not asked.executed:
        asked.unscored["hostile answers"] = errors[-1] or ""
    asked.stage = "gold"
    scorer.hangs = 0
    scorer.confined = asked.confined and bool(asked.executed)


def _ask_bases(asked: Probes, scorer: Scorer, seed: int) -> None:
    """Gold, silence and wrong answers of the right form, for every task."""
    gold = _scored(asked, scorer, "gold", [(task, task.gold or "") for task in asked.tasks])
    silence = _scored(asked, scorer, "silence", [(task, "") for task in asked.tasks])
    wrong: dict[str, list[float]] = {}
    for draw in range(2):
        for each in _ask_each(asked, scorer, {f"wrong {draw}": another_gold}, asked.tasks, seed)[f"wrong {draw}"]:
            if each.value is not None:
                wrong.setdefault(each.task.key, []).append(each.value)
    for right, nothing in zip(gold, silence, strict=True):
        if right.value is None:
            asked.unpaid += [right] if not right.skipped else []
            continue
        floor = nothing.value if nothing.value is not None else 0.0
        own = wrong.get(right.task.key) or [floor]
        asked.bases[right.task.key] = Base(gold=right.value, wrong=sum(own) / len(own), silence=floor)
    if asked.bases:
        top = max(base.gold for base in asked.bases.values())
        low = min(min(base.wrong, base.silence) for base in asked.bases.values())
        asked.span = top - low
        asked.unpaid += [p for p in gold if p.value is not None and p.value < top - 0.1 * asked.span]


def _chosen(
    asked: Probes,
    scorer: Scorer,
    operators: Mapping[str, Operator],
    first: Sequence[TextTask],
    rest: Sequence[TextTask],
    seed: int,
) -> list[Rate]:
    """The rates of the best operators, chosen on ``first`` and judged on ``rest`` (on the same tasks if there are no others)."""

    def rated(name: str, probes: Sequence[Probe]) -> Rate | None:
        return rate(name, probes, asked.bases, asked.span, least=LEAST, guess=asked.guess)

    probes = _ask_each(asked, scorer, operators, first, seed)
    tried = [each for name in operators if (each := rated(name, probes[name])) is not None]
    asked.tried[asked.stage] = len(tried)
    best = sorted(tried, key=lambda r: -(r.unearned["mean"] or 0.0))[:_KEPT]
    best += sorted(tried, key=lambda r: -(r.above_silence["mean"] or 0.0))[:_KEPT]
    makers = {each.operator: operators[each.operator] for each in best}
    again = _ask_each(asked, scorer, makers, rest or first, seed)
    return list({each.operator: rated(each.operator, again[each.operator]) or each for each in best}.values())


def _ask_wrong(asked: Probes, scorer: Scorer, seed: int) -> None:
    """Every form must be accepted for the answer to count as accepted: the lowest reward stands."""
    made: list[tuple[str, TextTask, Sequence[str]]] = []
    for task in _some(asked, _MUTATED):
        for name, wrong in WRONG.items():
            answers = wrong.make(task, asked.others, child_rng(seed, "audit", "text", name, task.key)) or ()
            right = wrong.settled and any(states(answer, task.gold or "") for answer in answers)
            if answers and task.key in asked.bases and not right:
                made.append((name, task, answers))
    asked.wrong = {name: [] for name in WRONG}
    for name, task, answers in made:
        probes = _scored(asked, scorer, name, [(task, answer) for answer in answers])
        if all(probe.value is not None for probe in probes):
            asked.wrong[name].append(min(probes, key=lambda p: p.value or 0.0))


def _ask_again(asked: Probes, scorer: Scorer, seed: int) -> None:
    """Wrong answers first, then gold, from the last task to the first, each twice, in a new process: the rewards must be the same."""
    rows: list[tuple[TextTask, str]] = []
    for task in reversed(asked.tasks[:8]):
        wrong = asked.others.another(task, child_rng(seed, "audit", "text", "wrong 0", task.key))
        rows += [(task, task.whole(answer)) for answer in (wrong, task.gold) if answer] * 2
    if asked.subject.remote:
        return  # a judge keeps what it said by its content; how far it disagrees with itself is a check of its own
    before = scorer.score(rows)
    after = scorer.fresh(rows)
    for (task, answer), old, new in zip(rows, before, after, strict=True):
        if old.value != new.value and not (old.hung or new.hung or old.skipped or new.skipped):
            changed = Probe(operator="asked again", task=task, answer=answer, value=old.value)
            asked.changed.append((changed, new.value))
    _ask_batch(asked, scorer)
    _ask_elsewhere(asked, seed)


def _ask_batch(asked: Probes, scorer: Scorer) -> None:
    """An answer to each of several tasks, in one call: a reward hangs on its own row alone.

    Every second task is answered with the gold of the task before it. A difference below the least effect may be rounding.
    """
    if asked.subject.judge_batch is None:
        return
    tasks = asked.tasks[:_FIRST]
    rows = [
        (task, task.whole((tasks[place - 1] if place % 2 else task).gold or "")) for place, task in enumerate(tasks)
    ]
    alone = scorer.score(rows)
    for (task, answer), one, other in zip(rows, alone, scorer.batch(rows), strict=True):
        asked.skipped[asked.stage] += other.hung or other.skipped
        if one.hung or other.hung or one.skipped or other.skipped or one.value == other.value:
            continue
        if None in (one.value, other.value) or abs((one.value or 0.0) - (other.value or 0.0)) >= LEAST * asked.span:
            batched = Probe(operator="asked in a batch", task=task, answer=answer, value=one.value)
            asked.batched.append((batched, other.value))


def _ask_elsewhere(asked: Probes, seed: int) -> None:
    """Gold, a wrong answer and both beside each other, in two processes with other seeds of hashes: the rewards must be the same."""
    if asked.subject.elsewhere is None or asked.executed or asked.effort < 1.0:  # there is no sandbox, or no time
        return
    rows: list[tuple[TextTask, str]] = []
    for task in asked.tasks[:8]:
        wrong = asked.others.another(task, child_rng(seed, "audit", "text", "wrong 0", task.key))
        answers = (task.gold, wrong, f"{task.gold} {wrong}", f"{wrong} {task.gold}") if wrong else (task.gold,)
        rows += [(task, task.whole(answer)) for answer in answers if answer]
    for (task, answer), first, second in zip(rows, *(asked.subject.elsewhere(rows) or ((), ())), strict=False):
        if first != second:
            asked.rehashed.append((Probe(operator="asked elsewhere", task=task, answer=answer, value=first), second))
