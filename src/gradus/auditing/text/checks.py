"""What the probes of a text grader come to: checks with a status, and findings with an exact string."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil, fsum
from typing import Any

from gradus.auditing.leaks import told_at
from gradus.auditing.records import ENOUGH, GRADING, Check, Status, high_of, low_of, tasks_to_settle
from gradus.auditing.text.forms import DECLARED
from gradus.auditing.text.mutations import WRONG
from gradus.auditing.text.probe import LEAST, Probes
from gradus.auditing.text.rates import Probe, Rate, quoted, shown
from gradus.auditing.text.review import is_accepted, is_refused, marked
from gradus.auditing.text.rewritings import EQUIVALENT
from gradus.stats import Interval, Proportion, format_interval, format_number, holm, mean_interval, wilson

EXPLOITABLE = (
    "sanity",
    "gold",
    "blind answers",
    "reflexes",
    "evolved answers",
    "wrong answers",
    "hostile answers",
    "files and processes",
    "leaks",
)
_GENEROUS = 0.34  # of the range: what a blind answer may earn above silence; `composed` pays a third for the form
_GROWN = 64.0  # MiB
_QUOTED = 40  # characters of an answer
_STEPS = (0.25, 0.5, 1.0, 2.0)  # seconds


def text_checks(asked: Probes, marks: Mapping[str, str]) -> list[Check]:
    """The checks of a text grader. ``marks``: what a person said of doubtful answers, by their key (see :func:`review_list`)."""
    return [_as_far_as_asked(check, asked) for check in _all_checks(asked, marks)]


def _as_far_as_asked(check: Check, asked: Probes) -> Check:
    """A check that passes on less than all of its answers is not settled."""
    left = asked.skipped[check.name]
    if not left or check.status not in ("pass", "skip"):
        return check
    why = f"{left:,} of its answers were not asked: {asked.stopped}"
    return replace(check, status="unresolved", evidence=f"{why}; so far: {check.evidence}")


def _all_checks(asked: Probes, marks: Mapping[str, str]) -> list[Check]:
    if asked.subject.remote and asked.errors and not asked.bases:
        return [_silent_judge(asked), _leaks(asked)]
    if asked.errors and not asked.bases and not asked.scored:
        return [*_not_graded(asked), _leaks(asked)]
    checks = [_sanity(asked), _gold(asked)]
    if asked.bases and asked.span > 0:
        checks += [
            _blind(asked, "blind answers", asked.blind),
            _blind(asked, "reflexes", asked.reflexes),
            _blind(asked, "evolved answers", asked.evolved),
            _wrong(asked, marks),
            _right(asked),
        ]
    if asked.programs is not None:
        checks.append(_programs(asked, *asked.programs))
    checks += [_judge(asked)] if asked.subject.remote else []
    return [*checks, _hostile(asked), _leaks(asked)]


def _sanity(asked: Probes) -> Check:
    n = len(asked.tasks)
    problems: list[str] = []
    if asked.unpaid:
        low = wilson(len(asked.unpaid), n).low or 0.0
        first = asked.unpaid[0]
        told = f"gold does not earn the full reward on {len(asked.unpaid)} of {n} tasks, e.g. {first.answer[:60]!r} earns {first.value}"
        if low > LEAST:
            problems.append(told)
    if asked.changed:
        first, now = asked.changed[0]
        problems.append(
            f"the same answer earns {first.value} and, asked in another order, {now}: {first.answer[:60]!r}"
        )
    if asked.batched:
        first, other = asked.batched[0]
        problems.append(
            f"the same answer earns {first.value} alone and {other} in one call with answers to other tasks: {first.answer[:60]!r}; "
            "read the columns of each completion's own row"
        )
    if asked.rehashed:
        first, other = asked.rehashed[0]
        problems.append(
            f"the reward changes with PYTHONHASHSEED, {first.value} or {other}: {first.answer[:60]!r}; sort what comes out of a set"
        )
    if asked.subject.range is not None:
        low, high = asked.subject.range
        outside = [b for b in asked.bases.values() for v in asdict(b).values() if not low - 1e-9 <= v <= high + 1e-9]
        if outside:
            problems.append(f"rewards leave the declared range [{low:g}, {high:g}]")
    top = max((base.gold for base in asked.bases.values()), default=0.0)
    earned = "the full reward" if asked.span > 0 else f"{format_number(top)}, no more than other answers,"
    evidence = "; ".join(problems) or f"gold earns {earned} on {n} tasks" + (
        "" if asked.subject.remote else "; the same answer earns the same in another order"
    )
    if asked.form != DECLARED:
        evidence += f"; gold is written {asked.form}, because it earns less in the form that the tasks declare: {_declared(asked)}"
    evidence += f"; {asked.subject.note}" if asked.subject.note else ""
    evidence += f"; {n} of {len(asked.subject.tasks)} tasks, because the grader is slow" if asked.effort < 1.0 else ""
    measured = {"tasks": n, "form": asked.form, "effort": asked.effort}
    return Check(name="sanity", status="fail" if problems else "pass", evidence=evidence, measured=measured)


def _declared(asked: Probes) -> str:
    task = next(task for task in asked.subject.tasks if task.gold)
    return f"{task.whole(task.gold or '')[:80]!r}"


def _gold(asked: Probes) -> Check:
    """Gold above the golds of other tasks: the ladder that nobody has to declare."""
    if not asked.tasks:
        return Check(name="gold", status="unresolved", evidence="no task has a gold answer; give some to resolve it")
    if not asked.bases:
        return Check(name="gold", status="fail", evidence="no gold answer got a reward")
    gain = mean_interval([base.gold - base.wrong for base in asked.bases.values()])
    silent = mean_interval([base.gold - base.silence for base in asked.bases.values()])
    least = LEAST * max(asked.span, 1e-9)
    measured = {"gold - another task's gold": asdict(gain), "gold - silence": asdict(silent), "least_effect": least}
    most = high_of(gain)
    if (most is not None and most <= least) or asked.span <= 0:
        status: Status = "fail"
        evidence = f"another task's gold earns as much as gold: {_between(asdict(gain))} apart"
    elif (low_of(gain) or 0.0) > 0:
        status, evidence = "pass", f"gold earns {_between(asdict(gain))} more than another task's gold"
    else:
        status, evidence = (
            "unresolved",
            f"gold earns {_between(asdict(gain))} more than another task's gold{_settled_by(asked, [gain], 0.0)}",
        )
    return Check(name="gold", status=status, evidence=evidence, measured=measured)


def _blind(asked: Probes, name: str, rates: Sequence[Rate]) -> Check:
    if not rates:
        why = "none of these answers could be asked of these tasks"
        if name == "evolved answers":
            why = "none were evolved: that takes more tasks (--episodes), a larger --budget or more --seconds"
            if asked.effort < 1.0:
                why = "the grader is slow, and the time is for the other checks; --seconds gives more"
        return Check(name=name, status="skip", evidence=why)
    adjusted = holm([each.p for each in rates])
    winners = [
        each
        for each, p in zip(rates, adjusted, strict=True)
        if (p is not None and p < 0.05) or (each.above_silence["low"] or 0.0) > _GENEROUS
    ]
    open_rates = [
        each
        for each in rates
        if each not in winners and (each.unearned["mean"] or 0.0) > LEAST and (each.unearned["high"] or 1.0) > LEAST
    ]
    best = max(winners or rates, key=lambda each: each.unearned["mean"] or 0.0)
    told = (
        f"{best.operator} earns {_between(best.unearned)} of the range more than a noisy teacher that is right as often"
    )
    tried = asked.tried.get(name, len(rates))
    measured = {"tried": tried, "best": [asdict(each) for each in rates[:4]]}
    if winners:
        if (best.unearned["low"] or 0.0) <= LEAST:
            told = (
                f"{best.operator} earns {_between(best.above_silence)} of the range more than silence and lucky guesses"
            )
        evidence = f"{told}, e.g. {best.example['answer']!r}; {len(winners)} of {tried} answers without the task pay"
        return Check(name=name, status="fail", evidence=evidence, measured=measured)
    if open_rates:
        settled = _settled_by(asked, [Interval(n=each.n, **each.unearned) for each in open_rates], LEAST)
        evidence = f"not known with {best.n} tasks: {told}{settled}"
        return Check(name=name, status="unresolved", evidence=evidence, measured=measured)
    few = len(asked.subject.tasks)
    if few < ENOUGH and name != "files and processes":  # what those do, they do on any task
        evidence = f"{few} tasks are too few to tell: {told}; {ENOUGH} tasks or more (--episodes) would settle it"
        return Check(name=name, status="unresolved", evidence=evidence, measured=measured)
    return Check(name=name, status="pass", evidence=f"none of {tried} pays; the best: {told}", measured=measured)


def _wrong(asked: Probes, marks: Mapping[str, str]) -> Check:
    rows: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    unsure: list[str] = []
    some: list[str] = []
    shares: list[Proportion] = []
    for name, probes in asked.wrong.items():
        if not probes:
            continue
        settled = WRONG[name].is_settled(probes[0].task) or marked(probes, asked, marks) == "wrong"
        accepted = [probe for probe in probes if is_accepted(probe, asked)]
        share = wilson(len(accepted), len(probes))
        rows[name] = {"n": share.n, "accepted": share.share, "low": share.low, "high": share.high, "settled": settled}
        if not settled or not accepted:
            continue
        rows[name]["example"] = shown(accepted[0])
        told = f"{name}: accepted in {len(accepted)} of {len(probes)}, e.g. {accepted[0].answer[:80]!r} for {(accepted[0].task.gold or '')[:40]!r}"
        if (share.low or 0.0) > 0.5:  # as with 4 of 4
            failed.append(told)
        elif (share.share or 0.0) > 0.5:
            unsure.append(told)
            shares.append(share)
        elif (share.low or 0.0) > LEAST:
            some.append(told)
    if failed:
        return Check(name="wrong answers", status="fail", evidence="; ".join(failed[:3]), measured=rows)
    if unsure:
        halves = [Interval(mean=each.share, low=each.low, high=each.high, n=each.n) for each in shares]
        settled = _settled_by(asked, halves, 0.5)
        return Check(name="wrong answers", status="unresolved", evidence="; ".join(unsure[:3]) + settled, measured=rows)
    if some:
        evidence = (
            f"some are accepted, and it is not known what the others have that these have not: {'; '.join(some[:3])}"
        )
        return Check(name="wrong answers", status="unresolved", evidence=evidence, measured=rows)
    evidence = f"none of {len(rows)} kinds of wrong answer made from the right one is accepted as a rule"
    return Check(name="wrong answers", status="pass", evidence=evidence, measured=rows)


def _right(asked: Probes) -> Check:
    rows: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    strict: list[str] = []
    for name, probes in asked.forms.items():
        if not probes:
            continue
        refused = [probe for probe in probes if is_refused(probe, asked)]
        share = wilson(len(refused), len(probes))
        rows[name] = {"n": share.n, "refused": share.share, "low": share.low, "high": share.high}
        if refused:
            rows[name]["example"] = shown(refused[0])
        if (share.low or 0.0) <= LEAST:
            continue
        if EQUIVALENT[name][1]:
            failed.append(f"{name} ({len(refused)} of {len(probes)}, e.g. {refused[0].answer[:40]!r})")
        else:
            strict.append(f"{name} ({refused[0].answer[:40]!r})")
    told = f"strict about: {', '.join(strict)}" if strict else "every equivalent form is accepted"
    if failed:
        evidence = f"right answers are refused {', '.join(failed)}; {told}; read the answer before it is compared"
        return Check(name="right answers", status="fail", evidence=evidence, measured=rows)
    return Check(name="right answers", status="pass", evidence=told, measured=rows)


def _programs(asked: Probes, rates: Sequence[Rate], left: Sequence[Probe]) -> Check:
    """Programs that reach for the reward in place of doing the task."""
    check = _blind(asked, "files and processes", rates)
    if check.name in asked.unscored:
        evidence = f"no program got a reward, because the grader fails in the sandbox: {asked.unscored[check.name]}"
        check = replace(check, status="unresolved", evidence=evidence)
    if not left:
        return check
    told = f"a program that does nothing earns {left[0].value} after {left[0].answer[:60]!r} ran before it"
    evidence = told if check.status != "fail" else f"{check.evidence}; {told}"
    return replace(check, status="fail", evidence=evidence)


def _hostile(asked: Probes) -> Check:
    problems: list[str] = []
    if asked.executed and asked.programs is None:  # where answers are programs they may be run, and are probed as such
        problems.append(f"the grader executes the answer ({', '.join(asked.executed[:3])}); parse it instead")
    if asked.hung:
        problems.append(f"the grader hangs on {quoted(asked.hung[0].answer, _QUOTED)}; it was cut off")
    errors = [] if asked.subject.remote else asked.errors
    rare, raised = ([each for each in errors if _is_out_of_reach(each) == far] for far in (True, False))
    if raised:
        problems.append(f"{_raised(raised[0])}: return the least reward instead")
    if asked.grown > _GROWN:
        problems.append(f"the grader's process grows by more than {_GROWN:g} MiB; keep nothing from call to call")
    where = "in a sandbox" if asked.confined else "not tried whether answers are executed: no sandbox for it"
    measured = {
        "executed": asked.executed,
        "errors": [{**shown(each), "error": each.error} for each in asked.errors[:5]],
        "hung": [shown(each) for each in asked.hung[:5]],
        "seconds_at_most": _seconds(asked.times),
    }
    status: Status = "fail" if problems else "pass"
    evidence = "; ".join(problems) or f"no answer makes the grader fail, hang or run code ({where})"
    if rare and not raised:
        evidence += f"; {_raised(rare[0])}, which no run is likely to sample: such an answer has no reward there, so return the least instead"
    if not problems and (error := asked.unscored.get("hostile answers")):
        status = "unresolved"
        evidence = f"no answer makes the grader fail or hang; whether it runs answers is not known, because it fails on right ones in the sandbox: {error}"
    return Check(name="hostile answers", status=status, evidence=evidence, measured=measured)


def _is_out_of_reach(probe: Probe) -> bool:
    """Whether it is a number of more digits than Python converts: 1,400 tokens or more, three digits a token."""
    return re.search(r"\d{4301}", probe.answer) is not None


def _raised(probe: Probe) -> str:
    return f"the grader fails on {quoted(probe.answer, _QUOTED)} ({probe.error})"


def _seconds(times: Sequence[float]) -> dict[str, float | None]:
    """The slowest call, and the slowest of all but one in a hundred, in rough steps, so that noise in times changes nothing."""
    slowest = sorted(times)
    named = {"p99": slowest[ceil(0.99 * len(slowest)) - 1 :][:1], "worst": slowest[-1:]}
    return {name: next((step for step in _STEPS if each and each[0] <= step), None) for name, each in named.items()}


def _not_graded(asked: Probes) -> list[Check]:
    """A grader that fails on whatever it is asked, right answers too: its error is the one finding."""
    first, failed = asked.errors[0], len(asked.errors) + len(asked.hung)
    told = f"the grader fails on every one of the {failed} answers that it was asked, e.g. on {quoted(first.answer, _QUOTED)}: {first.error}"
    measured = {"errors": [{**shown(each), "error": each.error} for each in asked.errors[:5]]}
    why = "no answer got a reward, because the grader fails on each"
    skipped = [Check(name=name, status="skip", evidence=why) for name in ("sanity", "gold", "hostile answers")]
    return [Check(name=GRADING, status="fail", evidence=told, measured=measured), *skipped]


def _silent_judge(asked: Probes) -> Check:
    """A server that scored nothing, as where it cannot be reached: of the grader nothing is known."""
    told = f"no answer has a score, and the other checks need some; the first: {asked.errors[0].error}"
    return Check(name="judge", status="fail", evidence=told, measured={"missing": {"count": len(asked.errors)}})


def _judge(asked: Probes) -> Check:
    """A grader that asks a server: how far it disagrees with itself, how many scores are missing, and what it cost."""
    missing = wilson(len(asked.errors), max(asked.answers, len(asked.errors), 1))
    spread = mean_interval(list(asked.logged.get("judge_disagreement", ())))
    dollars = fsum(asked.logged.get("judge_cost", ()))
    measured = {
        "disagreement": asdict(spread),
        "missing": {"count": len(asked.errors), **asdict(missing)},
        "dollars": dollars,
        "errors": [{**shown(each), "error": each.error} for each in asked.errors[:5]],
    }
    told = [f"{asked.answers:,} answers for {format_number(dollars, 2)} US dollars"]
    status: Status = "pass"
    if spread.mean is None:
        status = "unresolved"
        told.append("none was judged twice, so how far the judge disagrees with itself is not known; set recheck")
    else:
        by = f"judged twice, {spread.n} answers differ by {_between(asdict(spread)).lstrip('+')} of the range"
        low, high = low_of(spread), high_of(spread)
        if low is not None and low > LEAST:
            status, by = "fail", f"{by}; take the mean of several samples, lower the temperature, or sharpen the rubric"
        elif high is None or high > LEAST:
            status = "unresolved"
        told.append(by)
    if asked.errors:
        told.append(f"{len(asked.errors)} have no score, the first: {asked.errors[0].error}")
        status = "fail" if (missing.low or 0.0) > LEAST else status
    return Check(name="judge", status=status, evidence="; ".join(told), measured=measured)


def _leaks(asked: Probes) -> Check:
    place = told_at([t.prompt for t in asked.tasks], [[t.gold] for t in asked.tasks], only_after=True)
    if place is None:
        return Check(name="leaks", status="pass", evidence="no place of the prompt holds the gold answer")
    return Check(name="leaks", status="fail", evidence=f"the prompt holds the gold answer{place}; take it out")


def _settled_by(asked: Probes, figures: Sequence[Interval], against: float) -> str:
    """How many tasks would settle these figures, each of which was measured on a part of the tasks."""
    needed = [(tasks_to_settle(each, against=against), each.n) for each in figures]
    tasks = [ceil(number * len(asked.tasks) / n) for number, n in needed if number is not None]
    return f"; about {max(tasks):,} tasks (--episodes) would settle it" if tasks else ""


def _between(interval: Mapping[str, float | None]) -> str:
    return "an unknown part" if interval["mean"] is None else format_interval(interval, signed=True, digits=2)
