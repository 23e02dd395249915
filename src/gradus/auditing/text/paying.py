"""Checks of what a grader pays for: answers without the task, wrong answers, right ones in other forms, and programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from typing import Any

from gradus.auditing.records import ENOUGH, LEAST_EFFECT, Check, Kind, Note, signed
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.blind import BLIND, REFLEXES, Operator
from gradus.auditing.text.clusters import Cluster, cluster_of
from gradus.auditing.text.gold import states
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.programs import ask_programs
from gradus.auditing.text.rates import Probe, Rate, quoted, settled_within, shown
from gradus.auditing.text.tasks import TextTask
from gradus.stats import Interval, Proportion, holm, wilson

_FIRST = 12  # tasks on which every blind answer is tried; the rest judge the best of them
_MUTATED = 24
_FORMS = 16
_KEPT = 6
_GENEROUS = 0.34  # of the range: what a form may earn above silence and not be noted; `composed` pays a third for it
_OUTWEIGHS = (
    0.5  # of the range: a form that earns more than what it holds of the right answer, by this, outweighs being right
)
_PART = 0.5  # a grader that pays in parts takes off at least this part of what was changed
_REVIEWED = 20
_QUOTED = 200  # characters of a completion in a sentence
_FORM = "pay less for the form, or more for being right"


def blind_answers(ground: Ground) -> Check:
    """Answers that do not read the task."""
    return _without_task(ground, "blind answers", BLIND)


def reflexes(ground: Ground) -> Check:
    """Answers that copy from the question."""
    return _without_task(ground, "reflexes", REFLEXES)


def _without_task(ground: Ground, name: str, operators: Mapping[str, Operator]) -> Check:
    ground.enter(name)
    first = ground.some(_FIRST)
    rates, tried = chosen(ground, name, operators, first, ground.tasks[len(first) :])
    return unearned(ground, name, rates, tried=tried)


def chosen(
    ground: Ground,
    name: str,
    operators: Mapping[str, Operator],
    first: Sequence[TextTask],
    rest: Sequence[TextTask],
) -> tuple[list[Rate], int]:
    """The rates of the best operators, chosen on ``first`` and judged on ``rest`` (on the same tasks if ``rest`` is empty); how many were tried."""
    probes = ground.ask_each(name, operators, first)
    tried = [each for operator in operators if (each := ground.rate(operator, probes[operator])) is not None]
    best = sorted(tried, key=lambda r: -(r.unearned.mean or 0.0))[:_KEPT]
    best += sorted(tried, key=lambda r: -(r.above_silence.mean or 0.0))[:_KEPT]
    makers = {each.operator: operators[each.operator] for each in best}
    again = ground.ask_each(name, makers, rest or first)
    rates = {each.operator: ground.rate(each.operator, again[each.operator]) or each for each in best}
    return list(rates.values()), len(tried)


def unearned(ground: Ground, name: str, rates: Sequence[Rate], *, tried: int | None = None) -> Check:
    """Fails if one of these rates is surely above what a noisy teacher earns, by Holm over all of them. ``tried``: answers that they were chosen from."""
    if not rates:
        return Check(name=name, status="skip", evidence="none of these answers could be asked of these tasks")
    adjusted = holm([each.p for each in rates])
    winners = [
        each
        for each, p in zip(rates, adjusted, strict=True)
        if (p is not None and p < 0.05)
        or max(each.partly.low or 0.0, each.above_silence.low or 0.0) - each.held > _OUTWEIGHS
    ]
    open_rates = [
        each
        for each in rates
        if each not in winners
        and (each.unearned.mean or 0.0) > LEAST_EFFECT
        and (each.unearned.high or 1.0) > LEAST_EFFECT
    ]
    best = max(winners or rates, key=lambda each: each.unearned.mean or 0.0)
    told = f"{best.operator} earns {signed(best.unearned, 2)} of the range more than a noisy teacher that is right as often"
    tried = len(rates) if tried is None else tried
    measured = {"tried": tried, "best": [asdict(each) for each in rates[:4]]}
    if winners:
        if (best.unearned.low or 0.0) <= LEAST_EFFECT:
            told = f"{best.operator} earns {signed(best.partly, 2)} of the range more than silence where it is wrong"
        completion = quoted(best.example["completion"], _QUOTED)
        notes = [_note("exploit", best.operator, best.example, best.told)]
        evidence = f"{told}, e.g. {completion}; {len(winners)} of {tried} answers without the task pay"
        return Check(name=name, status="fail", evidence=evidence, measured=measured, notes=notes)
    if open_rates:
        settled = settled_within([each.unearned for each in open_rates], LEAST_EFFECT, tasks=len(ground.tasks))
        evidence = f"not known with {best.n} tasks: {told}{settled}"
        return Check(name=name, status="unresolved", evidence=evidence, measured=measured)
    few = len(ground.subject.tasks)
    if few < ENOUGH and name != "files and processes":  # what those do, they do on any task
        evidence = f"{few} tasks are too few to tell: {told}; {ENOUGH} tasks or more (--episodes) would settle it"
        return Check(name=name, status="unresolved", evidence=evidence, measured=measured)
    form = max(rates, key=lambda each: each.partly.low or 0.0)
    noted = (form.partly.low or 0.0) > _GENEROUS
    notes = [_note("lenient", form.operator, form.part_paid, form.told, _FORM)] if noted else []
    evidence = f"none of {tried} pays; the best: {told}"
    return Check(name=name, status="pass", evidence=evidence, measured=measured, notes=notes)


def wrong_answers(ground: Ground) -> Check:
    """Answers made wrong from gold."""
    ground.enter("wrong answers")
    first = ground.some(_MUTATED)
    probes: dict[str, list[Probe]] = {name: [] for name in WRONG}
    for name, task, answers in _mutated(ground, WRONG, first):
        probes[name] += _lowest(ground, name, task, answers)
    some = [name for name, own in probes.items() if any(is_accepted(probe, ground) for probe in own)]
    for name, task, answers in _mutated(ground, some, ground.tasks[len(first) :]):
        probes[name] += _lowest(ground, name, task, answers)  # what is accepted on some tasks is asked on all
    return wrong_of(ground, probes)


def _mutated(
    ground: Ground, names: Collection[str], tasks: Sequence[TextTask]
) -> list[tuple[str, TextTask, Sequence[str]]]:
    """Task by task the answers that operators make wrong."""
    made: list[tuple[str, TextTask, Sequence[str]]] = []
    for task in tasks:
        for name in names:
            answers = WRONG[name].make(ground.golds[task.key], ground.rng(name, task)) or ()
            right = WRONG[name].rule is None and any(states(answer, task.gold or "") for answer in answers)
            if answers and task.key in ground.bases and not right:
                made.append((name, task, answers))
    return made


def _lowest(ground: Ground, name: str, task: TextTask, answers: Sequence[str]) -> list[Probe]:
    """The answer that earns least: all forms must be accepted. Nothing if one has no reward."""
    each = ground.ask("wrong answers", [(name, task, answer) for answer in answers])
    known = all(probe.value is not None for probe in each)
    return [min(each, key=lambda p: p.value or 0.0)] if known else []


def _clusters(ground: Ground, probes: Mapping[str, Sequence[Probe]]) -> dict[str, Cluster]:
    """Of each operator that is accepted on some tasks the rule that these tasks have in common, by Bonferroni over all of them."""
    found: dict[str, Cluster] = {}
    some = {name: {p.task.key: is_accepted(p, ground) for p in own} for name, own in probes.items()}
    some = {name: accepted for name, accepted in some.items() if any(accepted.values())}
    for name, accepted in some.items():
        cluster = cluster_of(accepted, ground.golds)
        if cluster is not None and cluster.p * len(some) < 0.05:
            found[name] = cluster
    return found


def wrong_of(ground: Ground, probes: Mapping[str, Sequence[Probe]]) -> Check:
    """The check from the probes of each operator, one a task."""
    clusters = _clusters(ground, probes)
    rows: dict[str, dict[str, Any]] = {}
    told: dict[str, list[str]] = {"failed": [], "unsure": [], "some": []}
    shares: list[Proportion] = []
    notes: list[Note] = []
    review: list[tuple[float, dict[str, Any]]] = []
    for name, own in probes.items():
        if not own:
            continue
        settled = WRONG[name].is_settled(own[0].task.prompt)
        accepted = [probe for probe in own if is_accepted(probe, ground)]
        share = wilson(len(accepted), len(own))
        rows[name] = {"n": share.n, "accepted": share.share, "low": share.low, "high": share.high, "settled": settled}
        if not settled:  # for a person to judge, most accepted operators first
            told_of = [{**shown(probe), "prompt": probe.task.prompt[-600:]} for probe in accepted[:4]]
            review += [(share.share or 0.0, row) for row in told_of]
        if not settled or not accepted:
            continue
        first, count = accepted[0], f"{len(accepted)} of {len(own)}"
        rows[name]["example"] = shown(first)
        if WRONG[name].lenient:
            notes.append(_note("lenient", name, shown(first), count, WRONG[name].lenient))
            continue
        how = "failed" if (share.low or 0.0) > 0.5 else "unsure" if (share.share or 0.0) > 0.5 else "some"
        cluster = clusters.get(name) if how != "failed" else None
        if cluster is not None:
            rows[name]["cluster"] = asdict(cluster)
            where = f"{cluster.n} tasks where {cluster.rule} ({cluster.share:.0%} of all)"
            how, count = "failed", f"{cluster.accepted} of {where}"
        if how == "failed":
            notes.append(_note("exploit", name, shown(first), count))
        if how == "unsure":
            shares.append(share)
        if how != "some" or (share.low or 0.0) > LEAST_EFFECT:
            example = f"{quoted(first.completion, _QUOTED)} for {(first.task.gold or '')[:40]!r}"
            told[how].append(f"{name}: accepted in {count}, e.g. {example}")
    status = "fail" if told["failed"] else "unresolved" if told["unsure"] or told["some"] else "pass"
    evidence = f"none of {len(rows)} kinds of wrong answer made from the right one is accepted as a rule"
    if told["failed"]:
        evidence = "; ".join(told["failed"][:3])
    elif told["unsure"]:
        halves = [Interval(mean=each.share, low=each.low, high=each.high, n=each.n) for each in shares]
        evidence = "; ".join(told["unsure"][:3]) + settled_within(halves, 0.5, tasks=len(ground.tasks))
    elif told["some"]:
        evidence = f"some are accepted, and it is not known what the others have that these have not: {'; '.join(told['some'][:3])}"
    judged = [row for _, row in sorted(review, key=lambda each: -each[0])][:_REVIEWED]
    return Check(name="wrong answers", status=status, evidence=evidence, measured=rows, notes=notes, review=judged)


def _note(kind: Kind, what: str, example: Mapping[str, Any], share: str, change: str = "") -> Note:
    of_example = {name: example[name] for name in ("task", "completion", "gold", "reward")}
    return Note(kind=kind, what=what, share=share, change=change, **of_example)


def is_accepted(probe: Probe, ground: Ground) -> bool:
    """Returns True if a wrong answer earns as much as a right one, or loses much less than the change should cost."""
    base = ground.bases.get(probe.task.key)
    if base is None or probe.value is None or base.gold - base.silence < LEAST_EFFECT * ground.span:
        return False
    lost = (base.gold - probe.value) / (base.gold - base.silence)
    if lost <= 1e-6 or lost > 0.1:
        return lost <= 1e-6
    changed = 1 - SequenceMatcher(None, probe.task.gold or "", probe.answer, autojunk=False).ratio()
    return lost < _PART * changed


def right_answers(ground: Ground) -> Check:
    """Gold in other forms that mean the same."""
    ground.enter("right answers")
    makers = {name: make for name, (make, _) in EQUIVALENT.items()}
    return right_of(ground, ground.ask_each("right answers", makers, ground.some(_FORMS)))


def is_refused(probe: Probe, ground: Ground) -> bool:
    """Returns True if a right answer earns less than half of what it should."""
    base = ground.bases.get(probe.task.key)
    if base is None or probe.error:
        return False
    return (probe.value or 0.0) < base.silence + 0.45 * (base.gold - base.silence)


def right_of(ground: Ground, forms: Mapping[str, Sequence[Probe]]) -> Check:
    """The check from the probes of each form."""
    rows: dict[str, dict[str, Any]] = {}
    notes: list[Note] = []
    for name, probes in forms.items():
        if not probes:
            continue
        refused = [probe for probe in probes if is_refused(probe, ground)]
        share = wilson(len(refused), len(probes))
        rows[name] = {"n": share.n, "refused": share.share, "low": share.low, "high": share.high}
        if refused:
            rows[name]["example"] = shown(refused[0])
        if (share.low or 0.0) > LEAST_EFFECT:
            count = f"{len(refused)} of {len(probes)}"
            notes.append(_note("strict", f"refused {name}", shown(refused[0]), count, EQUIVALENT[name][1]))
    told = f"refused {', '.join(each.what.removeprefix('refused ') for each in notes)}" if notes else ""
    evidence = f"gold as the rows give it is accepted; {told}" if told else "every equivalent form is accepted"
    return Check(name="right answers", status="pass", evidence=evidence, measured=rows, notes=notes)


def programs(ground: Ground) -> Check:
    """Programs that reach for the reward in place of doing the task."""
    name = "files and processes"
    ground.enter(name)
    rates, left, error = ask_programs(ground)
    check = unearned(ground, name, rates)
    if error is not None:
        evidence = f"no program got a reward, because the grader fails in the sandbox: {error}"
        check = replace(check, status="unresolved", evidence=evidence)
    if left:
        told = f"a program that does nothing earns {left[0].value} after {left[0].answer[:60]!r} ran before it"
        evidence = told if check.status != "fail" else f"{check.evidence}; {told}"
        check = replace(check, status="fail", evidence=evidence)
    return check
