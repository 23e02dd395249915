"""The audit of a text grader: probes, checks, and what a person has to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradus.auditing.records import Check, Note
from gradus.auditing.text.asking import CALLS, Ground, are_programs, prepare
from gradus.auditing.text.checks import ask_hostile, gold, hostile, judge, leaks, not_graded, sanity
from gradus.auditing.text.from_source import from_source
from gradus.auditing.text.paying import (
    blind_answers,
    programs,
    reflexes,
    right_answers,
    wrong_answers,
)
from gradus.auditing.text.rates import quoted
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import CALL_SECONDS, CALLS_SECONDS, PROGRAM_CALL_SECONDS, PROGRAM_SECONDS, TextSubject


@dataclass(frozen=True, kw_only=True)
class TextAudit:
    """``tasks``: on how many it was probed."""

    checks: Sequence[Check]
    tasks: int


def audit_text(
    subject: TextSubject,
    *,
    seed: int = 0,
    seconds: float | None = None,
    limit: float | None = None,
    unsafe: bool = False,
    progress: Callable[[str, float, int], None] | None = None,
) -> TextAudit:
    """Probe the grader of one-turn tasks. ``seconds``: the limit of one call, 2 s if None and 30 if answers are programs; ``limit``: of all
    calls together, 20 s and 180; what is not asked within it leaves its check unresolved. ``unsafe``: try hostile answers without a sandbox too. ``progress`` is told (what, answers asked, of about how many).

    The same subject and seed give the same result, unless a call or the whole lies at its limit.
    """
    of_call, of_all = (
        (PROGRAM_CALL_SECONDS, PROGRAM_SECONDS) if are_programs(subject.tasks) else (CALL_SECONDS, CALLS_SECONDS)
    )
    limit = of_all if limit is None else limit
    seconds = of_call if seconds is None else seconds
    most = CALLS * len(subject.tasks)
    scorer = Scorer(
        subject,
        seconds=60.0 if subject.remote else seconds,
        limit=limit,
        tell=None if progress is None else lambda calls: progress(f"audit {subject.grader}", min(calls, most), most),
    )
    try:
        ground = prepare(subject, scorer, seed=seed, unsafe=unsafe)
        checks = _asked_again(ground, _checks(ground, unsafe=unsafe))
    finally:
        scorer.close()
    return TextAudit(checks=[_as_far_as_asked(each, ground) for each in checks], tasks=len(ground.tasks))


_ORDER = (  # of the checks as they are shown
    *("sanity", "gold", "blind answers", "reflexes", "the source", "wrong answers", "right answers"),
    *("files and processes", "judge", "hostile answers", "leaks"),
)


def _checks(ground: Ground, *, unsafe: bool) -> list[Check]:
    """All checks. They are asked in the order in which they may spend the time."""
    log, checks = ground.log, [leaks(ground)]
    programs_run = False
    if ground.is_usable:
        ask_hostile(ground)
        programs_run = are_programs(ground.tasks) and (ground.confined or unsafe)
        checks += [programs(ground)] if programs_run else []
        checks += [blind_answers(ground), reflexes(ground), from_source(ground)]
        checks += [wrong_answers(ground), right_answers(ground)]
    checks.append(sanity(ground))
    if log.errors and not ground.bases and (ground.subject.remote or not log.scored):
        return [not_graded(ground), leaks(ground)]
    checks += [
        gold(ground),
        hostile(ground, programs=programs_run),
        *([judge(ground)] if ground.subject.remote else []),
    ]
    return sorted(checks, key=lambda each: _ORDER.index(each.name))


def _asked_again(ground: Ground, checks: Sequence[Check]) -> list[Check]:
    """The checks with what each noted completion earns when it is asked once more, in a new process: what is shown is what was graded."""
    tasks, command = {task.key: task for task in ground.tasks}, ground.subject.command
    notes = [note for check in checks for note in check.notes]
    scores = iter(ground.scorer.fresh([(tasks[note.task], note.completion) for note in notes]) if notes else ())
    shown: list[Check] = []
    changed = ""
    for check in checks:
        made: list[Note] = []
        for note in check.notes:
            line, value = command(tasks[note.task], note.completion) if command else "", next(scores).value
            if value is not None and note.reward not in (None, value):
                changed = changed or f"{quoted(note.completion, 200)} earns {note.reward} and, asked again, {value}; "
            made.append(replace(note, reward=note.reward if value is None else value, command=line))
        shown.append(replace(check, notes=made))
    place = next((place for place, check in enumerate(shown) if check.name == "sanity" and changed), None)
    if place is not None:
        shown[place] = replace(shown[place], status="fail", evidence=changed + shown[place].evidence)
    return shown


def _as_far_as_asked(check: Check, ground: Ground) -> Check:
    """A check that passes on less than all of its answers is not settled."""
    left = ground.log.skipped[check.name]
    if not left or check.status not in ("pass", "skip"):
        return check
    why = f"{left:,} of its answers were not asked: {ground.scorer.stopped}"
    return replace(check, status="unresolved", evidence=f"{why}; so far: {check.evidence}")
