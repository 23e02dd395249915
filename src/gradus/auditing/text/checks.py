"""Checks of the grader itself: sanity, gold, hostile answers, leaks, and what a judge costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import fsum

from gradus.auditing.leaks import places_of_text, telling_place
from gradus.auditing.records import LEAST_EFFECT, Check, Status, high_of, low_of, signed
from gradus.auditing.text.asking import DECLARED, Ground
from gradus.auditing.text.operators import HOSTILE
from gradus.auditing.text.rates import quoted, shown
from gradus.auditing.text.scoring import Score, Scorer
from gradus.auditing.text.tasks import TextTask
from gradus.stats import format_number, mean_interval, wilson

_QUOTED = 40  # characters of an answer
_BATCH = 12  # tasks that are asked in one call
_AGAIN = 8  # tasks that are asked once more


def sanity(ground: Ground) -> Check:
    """The same answer earns the same in another order and in a batch; gold earns the full reward."""
    n, subject, problems = len(ground.tasks), ground.subject, [_unpaid(ground), _out_of_range(ground)]
    if ground.is_usable and not subject.remote:  # a judge keeps what it said by its content
        ground.enter("sanity")
        problems = [_asked_again(ground), _in_a_batch(ground), _at_steps(ground), *problems]
    top = max((base.gold for base in ground.bases.values()), default=0.0)
    earned = "the full reward" if ground.span > 0 else f"{format_number(top)}, no more than other answers,"
    evidence = "; ".join(filter(None, problems)) or f"gold earns {earned} on {n} tasks, and the same again"
    if ground.form != DECLARED:
        task = next(task for task in subject.tasks if task.gold)
        declared = repr(task.whole(task.gold or "")[:80])
        evidence += (
            f"; gold is written {ground.form}, because it earns less in the form that the tasks declare: {declared}"
        )
    evidence += f"; {n} of {len(subject.tasks)} tasks, because the grader is slow" if ground.effort < 1.0 else ""
    measured = {"tasks": n, "form": ground.form, "effort": ground.effort}
    status: Status = "fail" if any(problems) else "pass"
    return Check(name="sanity", status=status, evidence=evidence, measured=measured)


def _unpaid(ground: Ground) -> str:
    unpaid, n = ground.unpaid, len(ground.tasks)
    if not unpaid or (wilson(len(unpaid), n).low or 0.0) <= LEAST_EFFECT:
        return ""
    example = f"{unpaid[0].answer[:60]!r} earns {unpaid[0].value}"
    return f"gold does not earn the full reward on {len(unpaid)} of {n} tasks, e.g. {example}"


def _out_of_range(ground: Ground) -> str:
    low, high = ground.subject.range or (float("-inf"), float("inf"))
    values = [value for base in ground.bases.values() for value in asdict(base).values()]
    left = any(not low - 1e-9 <= value <= high + 1e-9 for value in values)
    return f"rewards leave the declared range [{low:g}, {high:g}]" if left else ""


def _asked_again(ground: Ground) -> str:
    """Wrong answers first, then gold, from the last task to the first, each twice, in a new process: names the first reward that changes."""
    rows: list[tuple[TextTask, str]] = []
    for task in reversed(ground.tasks[:_AGAIN]):
        wrong = ground.golds[task.key].another(ground.rng("wrong 0", task))
        rows += [(task, task.whole(answer)) for answer in (wrong, task.gold) if answer] * 2
    return _changed(rows, ground.scorer.score(rows), ground.scorer.fresh(rows), 0.0, "asked in another order")


def _at_steps(ground: Ground) -> str:
    """Names the step of a training, the first, the middle or the last, at which gold no longer earns more than a wrong answer."""
    if (judge_at := ground.subject.judge_at) is None:
        return ""
    asked = [(task, ground.golds[task.key].another(ground.rng("wrong 0", task))) for task in ground.tasks[:_AGAIN]]
    pairs = [(task, task.whole(answer)) for task, wrong in asked if wrong for answer in (wrong, task.gold or "")]
    for share, name in ((0.0, "first"), (0.5, "middle"), (1.0, "last")):
        subject = replace(ground.subject, judge=partial(judge_at, share))
        scorer = Scorer(subject=subject, limit=ground.scorer.limit / 10, confined=ground.scorer.confined)
        values = [score.value for score in scorer.fresh(pairs) if score.value is not None]
        gain = fsum(values[1::2]) - fsum(values[::2])
        if values and len(values) == len(pairs) and gain <= LEAST_EFFECT * ground.span * len(pairs) / 2:
            return (
                f"at the {name} step of a training gold earns no more than a wrong answer, e.g. {pairs[0][1][:60]!r} earns "
                f"{values[0]}; make the reward a function of task and answer alone"
            )
    return ""


def _in_a_batch(ground: Ground) -> str:
    """An answer to each of several tasks, in one call: names the first whose reward hangs on other rows than its own.

    Every second task is answered with the gold of the task before it. A difference below the least effect may be rounding.
    """
    if ground.subject.judge_all is None:
        return ""
    tasks = ground.tasks[:_BATCH]
    golds = [(tasks[place - 1] if place % 2 else task).gold or "" for place, task in enumerate(tasks)]
    rows = [(task, task.whole(gold)) for task, gold in zip(tasks, golds, strict=True)]
    alone, together = ground.scorer.score(rows), ground.scorer.batch(rows)
    ground.skipped["sanity"] += sum(each.hung or each.skipped for each in together)
    how = "in one call with answers to other tasks"
    told = _changed(rows, alone, together, LEAST_EFFECT * ground.span, how)
    return f"{told}; read the columns of each completion's own row" if told else ""


def _changed(
    rows: Sequence[tuple[TextTask, str]], before: Sequence[Score], after: Sequence[Score], least: float, how: str
) -> str:
    """Names the first answer whose reward is another one now, by ``least`` at least."""
    for (_, answer), old, new in zip(rows, before, after, strict=True):
        a, b = old.value, new.value
        if old.hung or new.hung or old.skipped or new.skipped or a == b:
            continue
        if a is None or b is None or abs(a - b) >= least:
            return f"the same answer earns {a} and, {how}, {b}: {answer[:60]!r}"
    return ""


def gold(ground: Ground) -> Check:
    """Gold above the golds of other tasks: the ladder that nobody has to declare."""
    if not ground.tasks:
        return Check(name="gold", status="unresolved", evidence="no task has a gold answer; give some to resolve it")
    if not ground.bases:
        return Check(name="gold", status="fail", evidence="no gold answer got a reward")
    gain = mean_interval([base.gold - base.wrong for base in ground.bases.values()])
    silent = mean_interval([base.gold - base.silence for base in ground.bases.values()])
    least = LEAST_EFFECT * max(ground.span, 1e-9)
    measured = {"gold - another task's gold": asdict(gain), "gold - silence": asdict(silent), "least_effect": least}
    most = high_of(gain)
    status: Status = "pass" if (low_of(gain) or 0.0) > 0 else "unresolved"
    evidence = f"gold earns {signed(gain, 2)} more than another task's gold"
    if (most is not None and most <= least) or ground.span <= 0:
        status, evidence = "fail", f"another task's gold earns as much as gold: {signed(gain, 2)} apart"
    return Check(name="gold", status=status, evidence=evidence, measured=measured)


def ask_hostile(ground: Ground) -> None:
    """Ask every hostile answer, in the form of gold and without; the log holds those on which the grader fails or hangs."""
    ground.enter("hostile answers")
    for task in ground.tasks[:1]:
        forms = [task, replace(task, before="", after="")] if task.before or task.after else [task]
        ground.ask_each("hostile answers", HOSTILE, forms)


def hostile(ground: Ground, *, programs: bool = False) -> Check:
    """No answer of any check makes the grader fail, hang or run code.

    ``programs``: answers that are programs were tried, which may be run.
    """
    problems: list[str] = []
    if ground.executed and not programs:
        problems.append(f"the grader executes the answer ({', '.join(ground.executed[:3])}); parse it instead")
    if ground.hung:
        problems.append(f"the grader hangs on {quoted(ground.hung[0].answer, _QUOTED)}; it was cut off")
    if ground.errors and not ground.subject.remote:
        raised = ground.errors[0]
        told = f"the grader fails on {quoted(raised.answer, _QUOTED)} ({raised.error})"
        problems.append(f"{told}: return the least reward instead")
    where = "in a sandbox" if ground.confined else "not tried whether answers are executed: no sandbox for it"
    status: Status = "fail" if problems else "pass"
    evidence = "; ".join(problems) or f"no answer makes the grader fail, hang or run code ({where})"
    if not problems and ground.sandbox_error:
        status = "unresolved"
        evidence = f"whether the grader runs answers is not known: in the sandbox it fails on right ones, {ground.sandbox_error}"
    hung = [shown(each) for each in ground.hung[:5]]
    measured = {"executed": list(ground.executed), "errors": _errors(ground), "hung": hung}
    return Check(name="hostile answers", status=status, evidence=evidence, measured=measured)


def _errors(ground: Ground) -> list[dict[str, object]]:
    return [{**shown(each), "error": each.error} for each in ground.errors[:5]]


def not_graded(ground: Ground) -> Check:
    """A grader that fails on every answer, right ones too, or a server that scored nothing: its error is the one finding."""
    first, failed = ground.errors[0], len(ground.errors) + len(ground.hung)
    told = f"the grader fails on every one of the {failed} answers that it was asked, e.g. on {quoted(first.answer, _QUOTED)}: {first.error}"
    return Check(name="grading", status="fail", evidence=told, measured={"errors": _errors(ground)})


def judge(ground: Ground) -> Check:
    """Says how far a grader that asks a server disagrees with itself, how many scores are missing, and what it cost."""
    errors, logged, answers = ground.errors, ground.scorer.logged, ground.scorer.calls
    missing = wilson(len(errors), max(answers, len(errors), 1))
    spread = mean_interval(list(logged.get("judge_disagreement", ())))
    dollars = fsum(logged.get("judge_cost", ()))
    measured = {
        "disagreement": asdict(spread),
        "missing": {"count": len(errors), **asdict(missing)},
        "dollars": dollars,
        "errors": _errors(ground),
    }
    told = [f"{answers:,} answers for {format_number(dollars, 2)} US dollars"]
    status: Status = "pass"
    if spread.mean is None:
        status = "unresolved"
        told.append("none was judged twice, so how far the judge disagrees with itself is not known; set recheck")
    else:
        by = f"judged twice, {spread.n} answers differ by {signed(spread, 2).lstrip('+')} of the range"
        low, high = low_of(spread), high_of(spread)
        if low is not None and low > LEAST_EFFECT:
            status, by = "fail", f"{by}; take the mean of several samples, lower the temperature, or sharpen the rubric"
        elif high is None or high > LEAST_EFFECT:
            status = "unresolved"
        told.append(by)
    if errors:
        told.append(f"{len(errors)} have no score, the first: {errors[0].error}")
        status = "fail" if (missing.low or 0.0) > LEAST_EFFECT else status
    return Check(name="judge", status=status, evidence="; ".join(told), measured=measured)


def leaks(ground: Ground) -> Check:
    """No place of the prompt holds the gold answer of its own task."""
    place = telling_place(
        [places_of_text(t.prompt, "the prompt") for t in ground.tasks], [[t.gold] for t in ground.tasks]
    )
    told = "no place of the prompt holds the gold answer"
    if place is not None:
        told = f"the gold answer is in {place}; take it out"
    return Check(name="leaks", status="pass" if place is None else "fail", evidence=told)
