"""Probing the grader of one-turn tasks: which answers are asked, and on which tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradus.audit.text.blind import BLIND, REFLEXES, Operator
from gradus.audit.text.mutations import CANARIES, EQUIVALENT, HOSTILE, WRONG
from gradus.audit.text.rates import Base, Probe, Rate, rate
from gradus.audit.text.scoring import Score, Scorer
from gradus.audit.text.shapes import Others, states
from gradus.audit.text.tasks import TextSubject, TextTask
from gradus.core import child_rng

__all__ = ["LEAST", "Probes", "probe"]

LEAST = 0.1  # of the range: the least effect
_FIRST = 12  # tasks on which every blind answer is tried; the rest judge the best of them
_MUTATED = 24
_FORMS = 16
_KEPT = 6


@dataclass
class Probes:
    """All that was asked and what came of it.

    ``bases``: by task. ``blind`` and ``reflexes``: rates on tasks that did not choose them, ``tried`` of them before. ``wrong``: operator
    -> its probes (one a task; the lowest reward of several forms). ``errors``: answers on which the grader raised or hung.
    """

    subject: TextSubject
    tasks: Sequence[TextTask]
    others: Others
    bases: dict[str, Base] = field(default_factory=dict)
    span: float = 0.0
    unpaid: list[Probe] = field(default_factory=list)
    blind: list[Rate] = field(default_factory=list)
    reflexes: list[Rate] = field(default_factory=list)
    tried: int = 0
    wrong: dict[str, list[Probe]] = field(default_factory=dict)
    forms: dict[str, list[Probe]] = field(default_factory=dict)
    errors: list[Probe] = field(default_factory=list)
    hung: list[Probe] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    confined: bool = False
    changed: list[tuple[Probe, float | None]] = field(default_factory=list)

    @property
    def guess(self) -> float:
        """The share of tasks whose gold is the most frequent one."""
        return self.others.counts.most_common(1)[0][1] / len(self.others.golds) if self.others.golds else 0.0


def probe(subject: TextSubject, scorer: Scorer, *, seed: int, unsafe: bool = False) -> Probes:
    """Ask everything. The answers that an executing grader would run come first, in the sandbox, and decide where the rest is asked."""
    tasks = [task for task in subject.tasks if task.gold]
    asked = Probes(subject=subject, tasks=tasks, others=Others(golds=[task.gold or "" for task in tasks]))
    _ask_canaries(asked, scorer, seed, unsafe)
    _ask_bases(asked, scorer, seed)
    if not asked.bases or asked.span <= 0:
        return asked
    first, rest = tasks[:_FIRST], tasks[_FIRST:]
    asked.blind = _chosen(asked, scorer, BLIND, first, rest, seed)
    asked.reflexes = _chosen(asked, scorer, REFLEXES, first, rest, seed)
    rows = [
        (task, task.whole(answer))
        for name in WRONG
        for task in tasks[:_MUTATED]
        for answer in WRONG[name].make(task, asked.others, child_rng(seed, "audit", "text", name, task.key)) or ()
    ]
    scorer.score(rows)
    for name in WRONG:
        _ask_wrong(asked, scorer, name, seed)
    _prefetch(asked, scorer, {name: make for name, (make, _) in EQUIVALENT.items()}, tasks[:_FORMS], seed)
    for name, (make, _) in EQUIVALENT.items():
        asked.forms[name] = _ask(asked, scorer, name, make, tasks[:_FORMS], seed)
    _prefetch(asked, scorer, HOSTILE, tasks[:1], seed)
    for name, make in HOSTILE.items():
        _ask(asked, scorer, name, make, tasks[:1], seed)
    _ask_again(asked, scorer, seed)
    return asked


def _ask(asked: Probes, scorer: Scorer, name: str, make: Operator, tasks: Sequence[TextTask], seed: int) -> list[Probe]:
    rows: list[tuple[TextTask, str]] = []
    for task in tasks:
        answer = make(task, asked.others, child_rng(seed, "audit", "text", name, task.key))
        if answer is not None:
            rows.append((task, answer))
    return _scored(asked, scorer, name, rows)


def _prefetch(
    asked: Probes, scorer: Scorer, operators: Mapping[str, Operator], tasks: Sequence[TextTask], seed: int
) -> None:
    """Score what these operators will ask, in one process instead of one each."""
    rows: list[tuple[TextTask, str]] = []
    for name, make in operators.items():
        for task in tasks:
            answer = make(task, asked.others, child_rng(seed, "audit", "text", name, task.key))
            if answer is not None:
                rows.append((task, task.whole(answer) if answer else answer))
    scorer.score(rows)


def _scored(asked: Probes, scorer: Scorer, name: str, rows: Sequence[tuple[TextTask, str]]) -> list[Probe]:
    scores = scorer.score([(task, task.whole(answer) if answer else answer) for task, answer in rows])
    return [_probe(asked, name, task, answer, score) for (task, answer), score in zip(rows, scores, strict=True)]


def _probe(asked: Probes, name: str, task: TextTask, answer: str, score: Score) -> Probe:
    probe = Probe(
        operator=name,
        task=task,
        answer=answer,
        value=score.value,
        right=states(answer, task.gold or ""),
        error=score.error,
    )
    if score.hung:
        asked.hung.append(probe)
    elif score.error and not score.error.startswith("not asked"):
        asked.errors.append(probe)
    return probe


def _ask_canaries(asked: Probes, scorer: Scorer, seed: int, unsafe: bool) -> None:
    asked.confined = scorer.can_confine()
    if not asked.confined and not unsafe:
        return
    names = [name for name in CANARIES for _ in asked.tasks[:2]]
    rows = [
        (t, CANARIES[name](t, asked.others, child_rng(seed, name)) or "") for name in CANARIES for t in asked.tasks[:2]
    ]
    scores = scorer.fresh([(task, task.whole(answer)) for task, answer in rows], confined=asked.confined)
    asked.executed = list(dict.fromkeys(name for name, score in zip(names, scores, strict=True) if score.executed))
    scorer.confined = asked.confined and bool(asked.executed)


def _ask_bases(asked: Probes, scorer: Scorer, seed: int) -> None:
    """Gold, silence and wrong answers of the right form, for every task."""
    gold = _scored(asked, scorer, "gold", [(task, task.gold or "") for task in asked.tasks])
    silence = _scored(asked, scorer, "silence", [(task, "") for task in asked.tasks])
    wrong: dict[str, list[float]] = {}
    for draw in range(2):
        for each in _ask(asked, scorer, f"wrong {draw}", _another, asked.tasks, seed):
            if each.value is not None:
                wrong.setdefault(each.task.key, []).append(each.value)
    for right, nothing in zip(gold, silence, strict=True):
        if right.value is None:
            asked.unpaid.append(right)
            continue
        floor = nothing.value if nothing.value is not None else 0.0
        own = wrong.get(right.task.key) or [floor]
        asked.bases[right.task.key] = Base(gold=right.value, wrong=sum(own) / len(own), silence=floor)
    if asked.bases:
        top = max(base.gold for base in asked.bases.values())
        low = min(min(base.wrong, base.silence) for base in asked.bases.values())
        asked.span = top - low
        asked.unpaid += [p for p in gold if p.value is not None and p.value < top - 0.1 * asked.span]


def _another(task: TextTask, others: Others, rng) -> str | None:
    return others.another(task, rng)


def _chosen(
    asked: Probes,
    scorer: Scorer,
    operators: Mapping[str, Operator],
    first: Sequence[TextTask],
    rest: Sequence[TextTask],
    seed: int,
) -> list[Rate]:
    """The rates of the best operators, chosen on ``first`` and judged on ``rest`` (on the same tasks if there are no others)."""
    tried: list[Rate] = []
    _prefetch(asked, scorer, operators, first, seed)
    for name, make in operators.items():
        each = rate(
            name, _ask(asked, scorer, name, make, first, seed), asked.bases, asked.span, least=LEAST, guess=asked.guess
        )
        if each is not None:
            tried.append(each)
    asked.tried += len(tried)
    best = sorted(tried, key=lambda r: -(r.unearned["mean"] or 0.0))[:_KEPT]
    best += sorted(tried, key=lambda r: -(r.above_silence["mean"] or 0.0))[:_KEPT]
    judged: dict[str, Rate] = {}
    _prefetch(asked, scorer, {each.operator: operators[each.operator] for each in best}, rest or first, seed)
    for each in best:
        if each.operator in judged:
            continue
        probes = _ask(asked, scorer, each.operator, operators[each.operator], rest or first, seed)
        again = rate(each.operator, probes, asked.bases, asked.span, least=LEAST, guess=asked.guess)
        judged[each.operator] = again or each
    return list(judged.values())


def _ask_wrong(asked: Probes, scorer: Scorer, name: str, seed: int) -> None:
    """Every form must be accepted for the answer to count as accepted: the lowest reward stands."""
    kept: list[Probe] = []
    for task in asked.tasks[:_MUTATED]:
        answers = WRONG[name].make(task, asked.others, child_rng(seed, "audit", "text", name, task.key))
        right = WRONG[name].settled and any(states(a, task.gold or "") for a in answers or ())
        if answers is None or task.key not in asked.bases or right:
            continue
        probes = _scored(asked, scorer, name, [(task, answer) for answer in answers])
        values = [probe for probe in probes if probe.value is not None]
        if len(values) == len(probes):
            kept.append(min(values, key=lambda p: p.value or 0.0))
    asked.wrong[name] = kept


def _ask_again(asked: Probes, scorer: Scorer, seed: int) -> None:
    """Wrong answers first, then gold, from the last task to the first, each twice, in a new process: the rewards must be the same."""
    rows: list[tuple[TextTask, str]] = []
    for task in reversed(asked.tasks[:8]):
        wrong = asked.others.another(task, child_rng(seed, "audit", "text", "wrong 0", task.key))
        rows += [(task, task.whole(answer)) for answer in (wrong, task.gold) if answer] * 2
    before = scorer.score(rows)
    after = scorer.fresh(rows)
    for (task, answer), old, new in zip(rows, before, after, strict=True):
        if old.value != new.value and not (old.hung or new.hung):
            changed = Probe(operator="asked again", task=task, answer=answer, value=old.value)
            asked.changed.append((changed, new.value))
