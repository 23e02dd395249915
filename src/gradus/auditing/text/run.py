"""The audit of a text grader: probes, checks, and what a person has to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.auditing.records import Check, Point
from gradus.auditing.text.checks import text_checks
from gradus.auditing.text.evolve import evolve
from gradus.auditing.text.grader_process import Score
from gradus.auditing.text.minimize import minimized
from gradus.auditing.text.probe import CALLS, Probes, probe
from gradus.auditing.text.programs import are_programs
from gradus.auditing.text.review import review_list
from gradus.auditing.text.scoring import Scorer
from gradus.auditing.text.tasks import CALLS_SECONDS, PROGRAM_SECONDS, TextSubject
from gradus.stats import mean_interval

_EXTRA = 0.9  # of the time: until then answers are evolved


@dataclass(frozen=True, kw_only=True)
class TextAudit:
    """``exploit``: the shortest answer that pays without the task, or None. ``review``: accepted answers that no rule settles.

    ``executes``: an answer was run as code. ``tasks``: on how many it was probed.
    """

    checks: Sequence[Check]
    points: Sequence[Point]
    exploit: Mapping[str, Any] | None
    executes: bool = False
    tasks: int = 0
    review: Sequence[Mapping[str, Any]] = field(default_factory=list)


def audit_text(
    subject: TextSubject,
    *,
    seed: int = 0,
    budget: int | None = None,
    seconds: float = 2.0,
    limit: float | None = None,
    unsafe: bool = False,
    marks: Mapping[str, str] = {},
    known: dict[tuple[str, str], Score] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> TextAudit:
    """Probe the grader of one-turn tasks. ``budget``: answers that may be asked to evolve others. ``seconds``: the limit of one call; ``limit``: of all calls together, 20 s if None and 180 if
    answers are programs; what is not asked within it leaves its check unresolved. ``unsafe``: try hostile answers without a sandbox too. ``known``: scores of an earlier audit,
    which are not asked again; new ones are added. ``progress`` is told (what, answers asked, of about how many).

    The same subject and seed give the same result, unless a call or the whole lies at its limit.
    """
    if limit is None:
        limit = PROGRAM_SECONDS if are_programs(subject.tasks) else CALLS_SECONDS
    most = CALLS * len(subject.tasks)
    scorer = Scorer(
        subject,
        seconds=60.0 if subject.remote else seconds,
        limit=limit,
        known={} if known is None else known,
        tell=None if progress is None else lambda calls: progress(f"audit {subject.grader}", min(calls, most), most),
    )
    try:
        asked = probe(subject, scorer, seed=seed, unsafe=unsafe)
        if asked.bases and asked.span > 0 and asked.effort == 1.0:  # a slow grader's time is for the other checks
            scorer.allow(_EXTRA)
            asked.evolved = evolve(asked, scorer, seed=seed, budget=budget)
        asked.logged, asked.answers = scorer.logged, scorer.calls
        scorer.allow(1.0)
        exploit = minimized(asked, scorer)
    finally:
        scorer.close()
    asked.times, asked.grown, asked.stopped = scorer.times, scorer.grown, scorer.stopped
    return TextAudit(
        checks=text_checks(asked, marks),
        points=_points(asked),
        exploit=exploit,
        executes=bool(asked.executed),
        tasks=len(asked.tasks),
        review=review_list(asked, marks),
    )


def _points(asked: Probes) -> list[Point]:
    bases = list(asked.bases.values())
    rows = [
        ("gold", "ladder", [b.gold for b in bases], 1.0),
        ("another task's gold", "ladder", [b.wrong for b in bases], 0.0),
        ("silence", "ladder", [b.silence for b in bases], 0.0),
    ]
    points = [
        Point(
            policy=name, role=role, reward=mean_interval(list(values)), true_reward=mean_interval([right] * len(values))
        )
        for name, role, values, right in rows
    ]
    for each in sorted([*asked.blind, *asked.reflexes, *asked.evolved], key=lambda r: -r.mean)[:3]:
        reward, right = mean_interval([each.mean]), mean_interval([each.right])
        points.append(Point(policy=each.operator, role="exploit", reward=reward, true_reward=right))
    return points
