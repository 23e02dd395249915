"""Checks of what a grader pays for: answers without the task, wrong answers, right ones in other forms, and programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from typing import Any

from scipy.stats import binom

from gradus.auditing.records import ENOUGH, LEAST_EFFECT, Check, Kind, Note, Status, signed
from gradus.auditing.text.asking import Ground
from gradus.auditing.text.blind import BLIND, REFLEXES, Operator
from gradus.auditing.text.gold import Gold, states
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.operators import EQUIVALENT
from gradus.auditing.text.programs import ask_programs
from gradus.auditing.text.rates import Probe, Rate, quoted, shown
from gradus.auditing.text.tasks import TextTask
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
    keys = list(accepted)
    rules = {key: _rules(golds[key], golds) for key in keys}
    finds, judges = keys[::2], keys[1::2]
    best: tuple[float, str] | None = None
    for rule in sorted({rule for key in finds if accepted[key] for rule in rules[key]}):
        within = [accepted[key] for key in finds if rule in rules[key]]
        others = [accepted[key] for key in finds if rule not in rules[key]]
        if len(within) < 2 or not others or sum(within) < _LIKELY * len(within):
            continue
        apart = sum(within) / len(within) - sum(others) / len(others)
        best = max(best or (_APART, ""), (apart, rule))
    if best is None or not best[1]:
        return None
    held = [accepted[key] for key in judges if best[1] in rules[key]]
    others = [accepted[key] for key in judges if best[1] not in rules[key]]
    if sum(best[1] in each for each in rules.values()) < _LEAST_SHARE * len(keys) or 2 * sum(held) <= len(held):
        return None
    chance = max(LEAST_EFFECT, sum(others) / max(1, len(others)))
    by_luck = float(binom.sf(sum(held) - 1, len(held), chance))
    return (best[1], wilson(sum(held), len(held))) if by_luck < _LUCK else None


def _rules(gold: Gold, golds: Mapping[str, Gold]) -> set[str]:
    """Names the features of a task: operators and words of its question, and sign, range, length and fields of its gold answer."""
    rules = {f"the question has {sign!r}" for sign in _OPERATOR.findall(gold.prompt)}
    rules |= {f"the question says {word!r}" for word in re.findall(r"[a-z]{3,}", gold.prompt.lower())}
    rules.add(f"the right answer has {len(gold.bare)} characters")
    fields = {key for other in golds.values() for key in other.object}
    rules |= {f"the right answer has {'the' if key in gold.object else 'no'} field {key!r}" for key in fields}
    value, values = gold.value, sorted(other.value for other in golds.values() if other.value is not None)
    if value is not None:
        rules.add(f"the right answer is {'negative' if value < 0 else 'not negative'}")
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            limit = values[int(share * len(values))]
            rules.add(f"the right answer is {'below' if value < limit else 'at least'} {limit:g}")
    return rules


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


_BLINDLY = {"blind answers": BLIND, "reflexes": REFLEXES}


def without_task(ground: Ground, name: str) -> Check:
    """Blind answers, which do not read the task, or reflexes, which copy from the question."""
    ground.enter(name)
    first = ground.some(_FIRST)
    rates, tried = chosen(ground, name, _BLINDLY[name], first, ground.tasks[len(first) :])
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
    best += sorted(tried, key=lambda r: -(r.wrong.mean or 0.0))[:_KEPT]
    makers = {each.operator: operators[each.operator] for each in best}
    again = ground.ask_each(name, makers, rest or first)
    rates = {each.operator: ground.rate(each.operator, again[each.operator]) or each for each in best}
    return list(rates.values()), len(tried)


def unearned(ground: Ground, name: str, rates: Sequence[Rate], *, tried: int | None = None) -> Check:
    """Fails if one of these rates is surely above what a noisy teacher earns, by Holm over all of them. ``tried``: answers that they were chosen from."""
    if not rates:
        return Check(name=name, status="skip", evidence="none of these answers could be asked of these tasks")
    winners = [
        each
        for each, p in zip(rates, holm([each.p for each in rates]), strict=True)
        if (p is not None and p < 0.05) or (each.wrong.low or 0.0) - each.held > _OUTWEIGHS
    ]
    means = [each.unearned.mean or 0.0 for each in rates if (each.unearned.high or 1.0) > LEAST_EFFECT]
    best = max(winners or rates, key=lambda each: each.unearned.mean or 0.0)
    told = f"{best.operator} earns {signed(best.unearned, 2)} of the range more than a noisy teacher that is right as often"
    tried = len(rates) if tried is None else tried
    few = len(ground.subject.tasks)
    status: Status = "pass"
    notes: list[Note] = []
    if winners:
        if (best.unearned.low or 0.0) <= LEAST_EFFECT:
            told = f"{best.operator} earns {signed(best.wrong, 2)} of the range more than silence where it is wrong"
        status, notes = "fail", [_note(ground, "exploit", best.operator, best.example, best.told)]
        completion = quoted(best.example["completion"], _QUOTED)
        evidence = f"{told}, e.g. {completion}; {len(winners)} of {tried} answers without the task pay"
    elif max(means, default=0.0) > LEAST_EFFECT:
        status, evidence = "unresolved", f"not known with {best.n} tasks, more (--episodes) would tell: {told}"
    elif few < ENOUGH and name != "files and processes":  # what those do, they do on any task
        status, evidence = "unresolved", f"{few} tasks are too few to tell, {ENOUGH} (--episodes) would tell: {told}"
    else:
        evidence = f"none of {tried} pays; the best: {told}"
        form = max(rates, key=lambda each: each.wrong.low or 0.0)
        if (form.wrong.low or 0.0) > _GENEROUS:
            notes = [_note(ground, "lenient", form.operator, form.paid, form.told, _FORM)]
    measured = {"tried": tried, "best": [asdict(each) for each in rates[:4]]}
    return Check(name=name, status=status, evidence=evidence, measured=measured, notes=notes)


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


def wrong_of(ground: Ground, probes: Mapping[str, Sequence[Probe]]) -> Check:
    """The check from the probes of each operator, one a task."""
    rows: dict[str, dict[str, Any]] = {}
    told: dict[Status, list[str]] = {"fail": [], "unresolved": []}
    notes: list[Note] = []
    review: list[tuple[float, dict[str, Any]]] = []
    for name, own in probes.items():
        if not own:
            continue
        settled = WRONG[name].is_settled(own[0].task.prompt)
        accepted = [probe for probe in own if is_accepted(probe, ground)]
        share = wilson(len(accepted), len(own))
        rows[name] = {"n": share.n, "accepted": share.mean, "low": share.low, "high": share.high, "settled": settled}
        if not settled:  # for a person to judge, most accepted operators first
            told_of = [{**shown(probe), "prompt": probe.task.prompt[-600:]} for probe in accepted[:4]]
            review += [(share.mean or 0.0, row) for row in told_of]
        if not settled or not accepted:
            continue
        rows[name]["example"], count = shown(accepted[0]), f"{len(accepted)} of {len(own)}"
        if WRONG[name].lenient:
            notes.append(_note(ground, "lenient", name, shown(accepted[0]), count, WRONG[name].lenient))
            continue
        fails = (share.low or 0.0) > 0.5
        if not fails and (rule := rule_of({p.task.key: is_accepted(p, ground) for p in own}, ground.golds)) is not None:
            rows[name]["rule"] = rule[0]
            fails, count = True, f"{rule[1].mean:.0%} of {rule[1].n} tasks where {rule[0]}"
        if fails:
            notes.append(_note(ground, "exploit", name, shown(accepted[0]), count))
        if fails or (share.mean or 0.0) > 0.5 or (share.low or 0.0) > LEAST_EFFECT:
            example = f"{quoted(accepted[0].completion, _QUOTED)} for {(accepted[0].task.gold or '')[:40]!r}"
            told["fail" if fails else "unresolved"].append(f"{name}: accepted in {count}, e.g. {example}")
    status: Status = "fail" if told["fail"] else "unresolved" if told["unresolved"] else "pass"
    evidence = f"none of {len(rows)} kinds of wrong answer made from the right one is accepted as a rule"
    if status in told:
        evidence = "; ".join(told[status][:3])
    judged = [row for _, row in sorted(review, key=lambda each: -each[0])][:_REVIEWED]
    return Check(name="wrong answers", status=status, evidence=evidence, measured=rows, notes=notes, review=judged)


def _note(ground: Ground, kind: Kind, what: str, example: Mapping[str, Any], share: str, change: str = "") -> Note:
    of_example = {name: example[name] for name in ("task", "completion", "gold", "reward")}
    command = ground.subject.command
    task = next((task for task in ground.tasks if task.key == example["task"]), None)
    line = command(task, example["completion"]) if command and task else ""
    return Note(kind=kind, what=what, share=share, change=change, command=line, **of_example)


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
        rows[name] = {"n": share.n, "refused": share.mean, "low": share.low, "high": share.high}
        if refused:
            rows[name]["example"] = shown(refused[0])
        if (share.low or 0.0) > LEAST_EFFECT:
            count = f"{len(refused)} of {len(probes)}"
            notes.append(_note(ground, "strict", f"refused {name}", shown(refused[0]), count, EQUIVALENT[name][1]))
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
