"""The audit of a text grader: probes, checks, and what a person has to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradus.auditing.records import Check
from gradus.auditing.text.asking import CALLS, Ground, are_programs, prepare
from gradus.auditing.text.checks import ask_hostile, gold, hostile, judge, leaks, not_graded, sanity, silent_judge
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
    progress: Callable[[str, int, int], None] | None = None,
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
        results = _asked(ground, unsafe=unsafe)
        answers = scorer.calls
    finally:
        scorer.close()
    results = _asked_again(ground, _ordered(ground, results, answers=answers))
    return TextAudit(
        checks=[_as_far_as_asked(each, ground) for each in results],
        tasks=len(ground.tasks),
    )


def _asked(ground: Ground, *, unsafe: bool) -> list[Check]:
    """The results of all checks that ask answers, in the order in which they may spend the time."""
    if not ground.is_usable:
        return [sanity(ground)]
    ask_hostile(ground)
    results = [programs(ground)] if ground.are_programs and (ground.confined or unsafe) else []
    results += [blind_answers(ground), reflexes(ground), from_source(ground)]
    return [*results, wrong_answers(ground), right_answers(ground), sanity(ground)]


_ORDER = (
    "sanity",
    "gold",
    "blind answers",
    "reflexes",
    "the source",
    "wrong answers",
    "right answers",
    "files and processes",
)


def _ordered(ground: Ground, asked: Sequence[Check], *, answers: int) -> list[Check]:
    """All results as they are shown. ``answers``: how many the grader was asked."""
    log, remote = ground.log, ground.subject.remote
    if log.errors and not ground.bases and remote:
        return [silent_judge(ground), leaks(ground)]
    if log.errors and not ground.bases and not log.scored:
        return [*not_graded(ground), leaks(ground)]
    results = sorted([*asked, gold(ground)], key=lambda each: _ORDER.index(each.name))
    ran = results[-1].name == _ORDER[-1]
    return [
        *results,
        *([judge(ground, answers=answers)] if remote else []),
        hostile(ground, programs=ran),
        leaks(ground),
    ]


def _asked_again(ground: Ground, results: Sequence[Check]) -> list[Check]:
    """The results with what each noted completion earns when it is asked once more, in a new process: what is shown is what was graded."""
    tasks, command = {task.key: task for task in ground.tasks}, ground.subject.command
    notes = [note for each in results for note in each.notes]
    scores = ground.scorer.fresh([(tasks[note.task], note.completion) for note in notes]) if notes else []
    again = {id(note): score for note, score in zip(notes, scores, strict=True) if score.value is not None}
    changed = [note for note in notes if id(note) in again and note.reward not in (None, again[id(note)].value)]
    shown: list[Check] = []
    for each in results:
        made = [
            replace(
                note,
                reward=again[id(note)].value if id(note) in again else note.reward,
                command=command(tasks[note.task], note.completion) if command else "",
            )
            for note in each.notes
        ]
        check = replace(each, notes=made)
        if changed and check.name == "sanity":
            note = changed[0]
            told = f"{quoted(note.completion, 200)} earns {note.reward} and, asked again, {again[id(note)].value}"
            check = replace(check, status="fail", evidence=f"{told}; {check.evidence}")
        shown.append(check)
    return shown


def _as_far_as_asked(check: Check, ground: Ground) -> Check:
    """A check that passes on less than all of its answers is not settled."""
    left = ground.log.skipped[check.name]
    if not left or check.status not in ("pass", "skip"):
        return check
    why = f"{left:,} of its answers were not asked: {ground.scorer.stopped}"
    return replace(check, status="unresolved", evidence=f"{why}; so far: {check.evidence}")
