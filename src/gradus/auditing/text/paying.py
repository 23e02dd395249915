"""Checks of what a grader pays for: answers without the task, wrong answers, and right ones in other forms."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean

from scipy.stats import binom

from gradus.auditing.records import (
    ENOUGH,
    LEAST_EFFECT,
    AuditCheck,
    GradedCompletion,
    Kind,
    is_above,
    signed,
)
from gradus.auditing.text.asking import Ground, Probes
from gradus.auditing.text.blind import BLIND, REFLEXES, Operators
from gradus.auditing.text.gold import Gold, closeness, states
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.rates import Probe, Rate, Shown, counted, quoted, shown
from gradus.auditing.text.tasks import TextTask
from gradus.core.findings import worst
from gradus.stats import Interval, holm, wilson

_LEAST_SHARE = 0.05  # of the tasks, which a rule must pick out
_LIKELY = 0.8  # accepted among these, on the half that finds the rule
_APART = 0.4  # more than elsewhere
_LUCK = 0.005  # chance of as many on the other half, if it were as elsewhere
_OPERATOR = re.compile(r"(?<=[\d)\sA-Za-z])(?:\*\*|//|[-+*/^%×÷−<>=])(?=[\s\d(A-Za-z])")


def rule_of(accepted: Mapping[str, bool], golds: Mapping[str, Gold]) -> tuple[str, Interval] | None:
    """The rule that best tells accepted tasks from others on every second task, with the share of the rest that it holds on; None if none holds.

    ``accepted``: of each task, by its key, whether a wrong answer was.
    """
    hits = {key for key, is_hit in accepted.items() if is_hit}
    # One half of the tasks finds the rule and the other judges it: of hundreds of rules some fit any half by chance.
    finds = set([*accepted][::2])
    judges = accepted.keys() - finds
    tasks_of: dict[str, set[str]] = {}  # by the rule
    for key in accepted:
        for rule in _rules(golds[key], golds):
            tasks_of.setdefault(rule, set()).add(key)
    apart: dict[str, float] = {}
    for rule, tasks in tasks_of.items():
        outside = finds - tasks
        likely = _share(hits, finds & tasks)
        if len(finds & tasks) > 1 and outside and likely >= _LIKELY:
            apart[rule] = likely - _share(hits, outside)
    best = max(apart, key=lambda rule: (apart[rule], rule), default="")
    if not best or apart[best] < _APART:
        return None
    tasks = tasks_of[best]
    within = judges & tasks
    if len(tasks) < _LEAST_SHARE * len(accepted) or _share(hits, within) <= 0.5:
        return None
    held = len(hits & within)
    # No task elsewhere may be accepted; a chance of 0 there would make any hit at all significant.
    elsewhere = max(LEAST_EFFECT, _share(hits, judges - tasks))
    by_luck = float(binom.sf(held - 1, len(within), elsewhere))
    return (best, wilson(held, len(within))) if by_luck < _LUCK else None


def _share(hits: set[str], tasks: set[str]) -> float:
    """The share of the tasks on which a wrong answer was accepted."""
    return len(hits & tasks) / max(1, len(tasks))


def _rules(gold: Gold, golds: Mapping[str, Gold]) -> set[str]:
    """Names the features of a task: operators and words of its question, and sign, range, length and fields of its gold answer."""
    rules = {f"the question has {sign!r}" for sign in _OPERATOR.findall(gold.prompt)}
    rules |= {f"the question says {word!r}" for word in re.findall(r"[a-z]{3,}", gold.prompt.lower())}
    rules.add(f"the right answer has {len(gold.bare)} characters")
    fields = {key for other in golds.values() for key in other.object}
    for key in fields:
        rules.add(f"the right answer has {'the' if key in gold.object else 'no'} field {key!r}")
    value = gold.value
    if value is None:
        return rules
    values = sorted(other.value for other in golds.values() if other.value is not None)
    rules.add(f"the right answer is {'negative' if value < 0 else 'not negative'}")
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        limit = values[int(share * len(values))]
        rules.add(f"the right answer is {'below' if value < limit else 'at least'} {limit:g}")
    return rules


_FIRST = 12  # tasks on which every blind answer is tried; the rest judge the best of them
_MUTATED = 24
_FORMS = 16
_FINALISTS = 6
_GENEROUS = 0.34  # of the range: what a form may earn above silence and not be noted; `composed` pays a third for it
# Of the range: a form that earns more than what it holds of the right answer, by this, outweighs being right.
_OUTWEIGHS = 0.5
_KEPT = 0.9  # of what a completion earns: what a shorter one must earn to be shown in its place
_PARTS = (r"\S+\s*|^\s+", r"(?s).")  # words and characters, which are left out to shorten it
_OTHERS = 15  # tasks of other answers on which a shorter completion is asked
_SHORTENINGS, _SHORTENING_SECONDS = 80 * (1 + _OTHERS), 1.0
_PART = 0.5  # a grader that pays in parts takes off at least this part of what was changed
_REVIEWED = 20
_NAMED = 8  # kinds of wrong answer in a sentence
_QUOTED = 200  # characters of a completion in a sentence
_FORM = "give less reward for form, or more for a right answer"
_BLINDLY = {"blind answers": BLIND, "reflexes": REFLEXES}


def without_task(ground: Ground, name: str) -> AuditCheck:
    """Blind answers, which do not read the task, or reflexes, which copy from the question."""
    ground.enter(name)
    first = ground.some(_FIRST)
    rates, tried = chosen(ground, name, _BLINDLY[name], first, ground.tasks[len(first) :])
    return unearned(ground, name, rates, tried=tried)


def chosen(
    ground: Ground,
    name: str,
    operators: Operators,
    first: Sequence[TextTask],
    rest: Sequence[TextTask],
) -> tuple[list[Rate], int]:
    """The rates of the best operators, chosen on ``first`` and judged on ``rest`` (on the same tasks if ``rest`` is empty); how many were tried."""
    rates = ground.rates(ground.ask_each(name, operators, first), ground.guess)
    # The best of many is best by luck too, so other tasks judge it.
    best = sorted(rates.values(), key=lambda rate: -(rate.unearned.mean or 0.0))[:_FINALISTS]
    best += sorted(rates.values(), key=lambda rate: -(rate.wrong.mean or 0.0))[:_FINALISTS]
    makers = {rate.operator: operators[rate.operator] for rate in best}
    judged = ground.rates(ground.ask_each(name, makers, rest or first), ground.guess)
    return [judged.get(operator, rates[operator]) for operator in makers], len(rates)


def unearned(
    ground: Ground,
    name: str,
    rates: Sequence[Rate],
    *,
    tried: int,
) -> AuditCheck:
    """Fails if one of these rates is surely above what a noisy teacher earns, by Holm over all of them. ``tried``: answers that they were chosen from."""
    if not rates:
        return AuditCheck(
            subject=name,
            status="note",
            evidence="none of these answers could be asked of these tasks",
        )
    winners = _winners(rates)
    best = max(winners or rates, key=_tells)
    gold = fmean(base.gold for base in ground.bases.values())
    most = "gold earns" if ground.others.golds else "the most is"
    earned = f"{best.operator} earns {best.mean:.2f}; {most} {gold:.2f}"
    check = AuditCheck(
        subject=name,
        status="pass",
        evidence=f"none of {tried} is an exploit; the best: {earned}",
        measured={"tried": tried, "best": [asdict(rate) for rate in rates[:4]]},
    )
    if winners:
        return _failed(ground, check, best, earned, f"{len(winners)} of {tried}")
    # A mean above the least effect that its interval does not confirm.
    doubtful = [rate.unearned.mean or 0.0 for rate in rates if (rate.unearned.high or 1.0) > LEAST_EFFECT]
    if max(doubtful, default=0.0) > LEAST_EFFECT:
        why = f"not known with {best.n} tasks, more (--episodes) would tell"
        return replace(check, status="open", evidence=f"{why}: {earned}")
    tasks = len(ground.subject.tasks)
    if tasks < ENOUGH and name != "files and processes":  # what those do, they do on any task
        why = f"{tasks} tasks are too few to tell, {ENOUGH} (--episodes) would tell"
        return replace(check, status="open", evidence=f"{why}: {earned}")
    form = max(rates, key=lambda rate: rate.wrong.low or 0.0)
    if not is_above(form.wrong, _GENEROUS):
        return check
    note = _note(ground, "lenient", form.operator, form.paid, form.share, _FORM)
    return replace(check, notes=[note])


def _failed(ground: Ground, check: AuditCheck, best: Rate, earned: str, count: str) -> AuditCheck:
    """The check as it fails by the best of its exploits, with a completion as short as it still earns."""
    # It may have won by its form alone: what it earns where it is wrong outweighs being right.
    if not is_above(best.unearned, LEAST_EFFECT):
        earned = f"{best.operator} earns {signed(best.wrong, 2)} of the range more than silence where it is wrong"
    example = _shortest(ground, best.example)
    completion = quoted(example["completion"], _QUOTED)
    evidence = f"{earned}, e.g. {completion}; {count} answers that ignore the task are exploits"
    note = _note(ground, "exploit", best.operator, example, best.share)
    return replace(check, status="fail", evidence=evidence, notes=[note])


def _tells(rate: Rate) -> tuple[float, int]:
    """The order in which rates are shown: the most unearned reward, and of equal ones the shortest answer, which says best what pays."""
    return round(rate.unearned.mean or 0.0, 6), -len(rate.example["completion"])


def _shortest(ground: Ground, example: Shown) -> Shown:
    """The example with ever smaller parts left out, words before characters, as long as it earns nine tenths as much.

    It is asked on its own task, where it must go on earning, and on some others, so that what earns on all of them still does. It
    never comes to state the right answer, unless it did. A slow grader is asked for a second at most. Source: delta debugging, Zeller and Hildebrandt (2002).
    """
    scorer = ground.scorer
    task = ground.golds[example["task"]].task
    others = {other.answer: other for other in ground.tasks if other.answer != task.answer}
    tasks = [task, *list(others.values())[:_OTHERS]]

    def rewards(text: str) -> list[float]:
        scores = scorer.score([(other, text) for other in tasks])
        return [score.value or 0.0 for score in scores]

    earned = rewards(example["completion"])
    may_state = states(example["completion"], task.answer)
    until = scorer.spent + _SHORTENING_SECONDS
    most_calls = scorer.calls + _SHORTENINGS
    for part in _PARTS:
        parts = re.findall(part, example["completion"])
        size = len(parts) // 2
        start = 0
        while size and scorer.calls < most_calls and scorer.spent < until:
            shorter = [*parts[:start], *parts[start + size :]]
            text = "".join(shorter)
            is_other = bool(text) and (may_state or not states(text, task.answer))
            values = rewards(text) if is_other else [-math.inf]
            if values[0] >= _KEPT * earned[0] and sum(values) >= _KEPT * sum(earned):
                parts = shorter
                example = {**example, "completion": text, "reward": values[0]}
            else:
                start += size
            if start >= len(parts):
                size = min(size, len(parts)) // 2
                start = 0
    return example


def _winners(rates: Sequence[Rate]) -> list[Rate]:
    """The rates that surely pay, or whose form outweighs being right."""
    winners: list[Rate] = []
    for rate, p in zip(rates, holm([rate.p for rate in rates]), strict=True):
        pays = p is not None and p < 0.05
        outweighs = (rate.wrong.low or 0.0) - rate.held > _OUTWEIGHS
        if pays or outweighs:
            winners.append(rate)
    return winners


def wrong_answers(ground: Ground) -> AuditCheck:
    """Answers made wrong from gold."""
    ground.enter("wrong answers")
    first = ground.some(_MUTATED)
    probes: Probes = {name: [] for name in WRONG}
    _ask_wrong(ground, probes, WRONG, first, draws=1)
    # What is accepted on some tasks is asked on all, and twice: another answer may be right by accident, but hardly two.
    accepted = (probe for rows in probes.values() for probe in rows if is_accepted(probe, ground))
    names = list(dict.fromkeys(probe.operator for probe in accepted))
    for name in names:
        probes[name].clear()
    _ask_wrong(ground, probes, names, ground.tasks, draws=2)
    return wrong_of(ground, probes)


def _ask_wrong(
    ground: Ground,
    probes: Probes,
    names: Collection[str],
    tasks: Sequence[TextTask],
    *,
    draws: int,
) -> None:
    """Adds probes of the answers that operators make wrong, task by task.

    Of several answers the one that earns least counts, for all must be accepted; none counts if one has no reward.
    """
    for task in ground.in_time("wrong answers", tasks):
        for name in names if task.key in ground.bases else ():
            wrong = WRONG[name]
            answers: dict[str, None] = {}
            for draw in range(draws):
                key = f"{name} {draw}" if draw else name
                drawn = wrong.answers(ground.golds[task.key], ground.rng(key, task))
                answers |= dict.fromkeys(drawn)
            # The change made no difference. An operator with a rule changes on purpose what ``states`` does not look at, as case.
            if wrong.rule is None and any(states(answer, task.answer) for answer in answers):
                continue
            rows = ground.ask("wrong answers", [(name, task, answer) for answer in answers])
            if rows and all(probe.value is not None for probe in rows):
                probes[name].append(min(rows, key=lambda probe: probe.reward))


def wrong_of(ground: Ground, probes: Mapping[str, Sequence[Probe]]) -> AuditCheck:
    """The check from the probes of each operator, one a task."""
    kinds = [_kind_of_wrong(ground, name, rows) for name, rows in probes.items() if rows]
    if not kinds:
        evidence = "no answer that is wrong by a rule can be made from these reference answers"
        return AuditCheck(subject="wrong answers", status="note", evidence=evidence)

    def rank(kind: AuditCheck) -> tuple[float, bool]:
        # What is accepted most is shown, and of equal kinds one whose answer can be given without knowing the right one.
        return -kind.measured["accepted"], any(note.gold in note.completion for note in kind.notes)

    kinds.sort(key=rank)
    status = worst(kinds)
    first, *others = [kind for kind in kinds if kind.status == status]
    # Kinds that are not accepted as a rule say nothing.
    none = f"none of {len(kinds)} kinds of wrong answer made from the right one is accepted as a rule"
    evidence = first.evidence or none
    if others and status != "pass":
        evidence += f"; also {', '.join(map(_named, others[:_NAMED]))}"
    review = [row for kind in kinds for row in kind.review]
    return AuditCheck(
        subject="wrong answers",
        status=status,
        evidence=evidence,
        measured={kind.subject: kind.measured for kind in kinds},
        notes=[note for kind in kinds for note in kind.notes],
        review=review[:_REVIEWED],
    )


def _named(kind: AuditCheck) -> str:
    """A kind of wrong answer, with how often it is accepted."""
    return f"{kind.subject} ({kind.notes[0].share})" if kind.notes else kind.subject


def _kind_of_wrong(ground: Ground, name: str, probes: Sequence[Probe]) -> AuditCheck:
    """What a grader does with one kind of wrong answer."""
    wrong = WRONG[name]
    settled = wrong.is_settled(probes[0].task)
    accepted = [probe for probe in probes if is_accepted(probe, ground)]
    share, measured = counted("accepted", len(accepted), len(probes))
    measured["settled"] = settled
    kind = AuditCheck(subject=name, status="pass", evidence="", measured=measured)
    if not accepted:
        return kind
    count = f"{len(accepted)} of {len(probes)}"
    example = shown(ground.unpacked(accepted[0]))
    if settled:
        measured["example"] = example
        if wrong.lenient:
            return replace(kind, notes=[_note(ground, "lenient", name, example, count, wrong.lenient)])
        return _settled(ground, kind, share, {probe.task.key: probe in accepted for probe in probes})
    review = [{**shown(probe), "prompt": probe.task.prompt[-600:]} for probe in accepted[:4]]
    if not wrong.settled_by or not is_above(share, 0.5):
        return replace(kind, review=review)
    note = _note(ground, "open", name, example, count, wrong.settled_by)
    return replace(kind, notes=[note], review=review)


def _settled(ground: Ground, kind: AuditCheck, share: Interval, accepted: Mapping[str, bool]) -> AuditCheck:
    """The finding if the answers are surely wrong: it fails if they are accepted as a rule, or on a cluster of tasks.

    ``share``: of tasks on which they are accepted; ``accepted``: whether it was, by the key of the task.
    """
    count = f"{sum(accepted.values())} of {len(accepted)}"
    is_usual = is_above(share, 0.5)
    rule = None if is_usual else rule_of(accepted, ground.golds)
    if rule is not None:
        name, held = rule
        count = f"{held.mean:.0%} of {held.n} tasks where {name}"
        kind = replace(kind, measured={**kind.measured, "rule": name})
    example = kind.measured["example"]
    text = f"{quoted(example['completion'], _QUOTED)} for {example['gold'][:40]!r}"
    evidence = f"{kind.subject}: accepted in {count}, e.g. {text}"
    if is_usual or rule is not None:
        note = _note(ground, "exploit", kind.subject, example, count, WRONG[kind.subject].fix)
        return replace(kind, status="fail", evidence=evidence, notes=[note])
    # Too often for an accident, and neither as a rule nor where a rule says so.
    if (share.mean or 0.0) > 0.5 or is_above(share, LEAST_EFFECT):
        return replace(kind, status="open", evidence=evidence)
    return kind


def _note(
    ground: Ground,
    kind: Kind,
    what: str,
    example: Shown,
    share: str,
    change: str = "",
) -> GradedCompletion:
    """A completion as evidence, with the line that scores it again."""
    command = ground.subject.command
    fields = {name: example[name] for name in ("task", "completion", "gold", "reward")}
    return GradedCompletion(
        kind=kind,
        what=what,
        **fields,
        share=share,
        change=change,
        command=command(ground.golds[example["task"]].task, example["completion"]) if command else "",
    )


def is_accepted(probe: Probe, ground: Ground) -> bool:
    """Returns True if a wrong answer earns as much as a right one, or loses much less than what is wrong in it."""
    base = ground.bases.get(probe.task.key)
    if base is None or probe.value is None:
        return False
    gain = base.gold - base.silence
    # Where gold itself earns next to nothing, a wrong answer that earns the same shows nothing.
    if gain < LEAST_EFFECT * ground.span:
        return False
    lost = (base.gold - probe.value) / gain
    if lost <= 1e-6:
        return True
    return lost <= 0.1 and lost < _PART * (1 - closeness(probe.answer, probe.task.answer))


def right_answers(ground: Ground) -> AuditCheck:
    """Gold in other forms that mean the same."""
    ground.enter("right answers")
    makers = {name: make for name, (make, _) in EQUIVALENT.items()}
    return right_of(ground, ground.ask_each("right answers", makers, ground.some(_FORMS)))


def is_refused(probe: Probe, ground: Ground) -> bool:
    """Returns True if a right answer earns less than half of what it should."""
    base = ground.bases.get(probe.task.key)
    if base is None or probe.score.error:  # what the grader raises on is a finding of another check
        return False
    return probe.reward < base.silence + 0.45 * (base.gold - base.silence)


def right_of(ground: Ground, forms: Mapping[str, Sequence[Probe]]) -> AuditCheck:
    """The check from the probes of each form."""
    measured: dict[str, Shown] = {}
    notes: list[GradedCompletion] = []
    strict: list[str] = []
    for name, probes in forms.items():
        if not probes:
            continue
        refused = [probe for probe in probes if is_refused(probe, ground)]
        share, measured[name] = counted("refused", len(refused), len(probes))
        if refused:
            measured[name]["example"] = shown(refused[0])
        if is_above(share, LEAST_EFFECT):
            strict.append(name)
            count = f"{len(refused)} of {len(probes)}"
            notes.append(_note(ground, "strict", f"refused {name}", shown(refused[0]), count, EQUIVALENT[name][1]))
    evidence = "every equivalent form is accepted"
    if strict:
        evidence = f"gold as the rows give it is accepted; refused {', '.join(strict)}"
    return AuditCheck(
        subject="right answers",
        status="pass",
        evidence=evidence,
        measured=measured,
        notes=notes,
    )
