"""How often the audit is right about graders of which it is known whether they are sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradus.auditing.result import verdict_of
from gradus.auditing.run import AuditSettings, audit_text
from gradus.auditing.text.tasks import TextSubject
from gradus.sandbox import clock
from gradus.stats import wilson


@dataclass(frozen=True, kw_only=True)
class Case:
    """A grader with its label: flawed, sound, or partial (which counts as neither). ``kind``: the class of the flaw, or the reason.

    ``noted``: the kind of note that counts as found too, empty if the audit has to fail.
    ``disputed``: what speaks against the label, which counts all the same.
    """

    name: str
    label: str
    kind: str
    subject: Callable[[], TextSubject]
    noted: str = ""
    disputed: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the audit said of a case: its verdict, the checks that failed, and the first evidence.

    ``seconds``: without those that the machine was busy with others. ``noted``: it noted what counts as found.
    """

    name: str
    label: str
    kind: str
    verdict: str
    failed: Sequence[str]
    evidence: str
    seconds: float
    disputed: str = ""
    noted: bool = False


def judged(case: Case, *, seed: int) -> Row:
    """Audit one case."""
    started = clock.now()
    checks = audit_text(case.subject(), AuditSettings(seed=seed))[0]
    failed = [check for check in checks if check.status == "fail"]
    noted = any(note.kind == case.noted for check in checks for note in check.notes)
    return Row(
        name=case.name,
        label=case.label,
        kind=case.kind,
        verdict=verdict_of(checks),
        failed=[check.subject for check in failed],
        evidence=failed[0].evidence if failed else "",
        seconds=round(clock.now() - started, 1),
        disputed=case.disputed,
        noted=noted,
    )


def board(rows: Sequence[Row]) -> dict[str, Any]:
    """Detection and false alarms with intervals, by class too; what was missed, and what was flagged for nothing."""
    flawed = [row for row in rows if row.label == "flawed"]
    sound = [row for row in rows if row.label == "sound"]
    seconds = sorted(row.seconds for row in rows)
    return {
        "detection": _share(flawed),
        "false_alarms": _share(sound),
        "by_class": {kind: _share([r for r in flawed if r.kind == kind]) for kind in sorted({r.kind for r in flawed})},
        "misses": [asdict(row) for row in flawed if not _found(row)],
        "alarms": [asdict(row) for row in sound if row.verdict == "fail"],
        "unresolved": [row.name for row in rows if row.verdict == "unresolved"],
        "partial": [asdict(row) for row in rows if row.label == "partial"],
        "seconds": {"median": seconds[len(seconds) // 2], "most": seconds[-1]} if seconds else {},
    }


def _found(row: Row) -> bool:
    return row.verdict == "fail" or row.noted


def _share(rows: Sequence[Row]) -> Mapping[str, Any]:
    share = wilson(sum(map(_found, rows)), len(rows))
    return {"n": share.n, "share": share.mean, "low": share.low, "high": share.high}
