"""What fails or is accepted beside the audit's own verdict: limits on the figure, and findings that the author has accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import cast

from gradus.auditing.records import ACCEPTED_FILE, AuditCheck
from gradus.auditing.result import AuditResult
from gradus.core import ConfigError
from gradus.core.files import read_toml
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict

_KEYS = {"check", "example", "reason", "until"}
_FIGURES = ("free", "near", "strict")


def limits_in(text: str) -> Mapping[str, float]:
    """Reads limits on the figure. Raises ConfigError with what was expected.

    >>> limits_in("free>0.1, near > 0.3")
    {'free': 0.1, 'near': 0.3}
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition(">"))
        # float() also reads "nan", above which no share lies, and negative numbers.
        is_number = number.replace(".", "", 1).isdigit()
        if name not in _FIGURES or not is_number:
            raise ConfigError(
                f"expected limits like 'free>0.1, near>0.3' on {', '.join(_FIGURES)}, got {part.strip()!r}"
            )
        limits[name] = float(number)
    return limits


def with_limits(result: AuditResult, limits: Mapping[str, float]) -> AuditResult:
    """The result, whose figure fails if a share is above its limit. No failure is taken away. Raises ConfigError if it has no figure."""
    if limits and not any(check.subject == "figure" for check in result.checks):
        raise ConfigError(
            "--fail-on is for tasks of one turn, of which the audit knows right answers; leave it out here"
        )
    return replace(result, checks=[_limited(check, limits) for check in result.checks])


def _limited(check: AuditCheck, limits: Mapping[str, float]) -> AuditCheck:
    """The figure, failed if it is above a limit; any other check as it is."""
    if check.subject != "figure":
        return check
    above: list[str] = []
    for name, limit in limits.items():
        # "strict" is a number itself, the others say also what earns them.
        value = cast("JsonDict | float | None", check.measured.get(name))
        share = value["share"] if isinstance(value, dict) else value
        if share is not None and share > limit:
            above.append(f"{name} {share:.2f} is above {limit:g}")
    if not above:
        return check
    return replace(check, status="fail", evidence=f"{', '.join(above)}: {check.evidence}")


@frozen_record
class AcceptedFinding:
    """A finding that the author lives with. ``example``: :func:`digest` of the completion, empty if an open check shows none.

    ``until``: the last day on which it counts.
    """

    check: str
    reason: str
    example: str = ""
    until: date | None = None


def digest(completion: str) -> str:
    """Eight letters and digits that stand for a completion."""
    return sha256(completion.encode()).hexdigest()[:8]


def read_accepted(folder: Path) -> Sequence[AcceptedFinding]:
    """Reads the file beside the rows; empty if there is none. Raises ConfigError for what is no accepted finding."""
    path = folder / ACCEPTED_FILE
    if not path.is_file():
        return []
    findings: list[AcceptedFinding] = []
    for row in read_toml(path).get("accepted", []):
        is_complete = {"check", "reason"} <= set(row) <= _KEYS
        if not is_complete or not isinstance(row.get("until", date.max), date):
            raise ConfigError(
                f"{path}: an accepted finding has check, reason, the example that the check shows and, if it ends, until as a date; got {row}"
            )
        findings.append(AcceptedFinding(**row))
    return findings


def with_accepted(result: AuditResult, accepted: Sequence[AcceptedFinding], today: date) -> AuditResult:
    """The result, in which a check that is accepted is a note that says so."""
    counting = [finding for finding in accepted if finding.until is None or finding.until >= today]
    return replace(result, checks=[_accepted(check, counting) for check in result.checks])


def _accepted(check: AuditCheck, accepted: Sequence[AcceptedFinding]) -> AuditCheck:
    """A check that fails, as a note if each of its exploits is accepted; and one that is open and shows none, if it is itself."""
    # By the completion and not by the check alone: another hole in the same check still fails.
    reasons = {finding.example: finding.reason for finding in accepted if finding.check == check.subject}
    examples = [digest(note.completion) for note in check.notes if note.kind == "exploit"]
    if check.status == "open":
        examples = examples or [""]
    if check.status not in ("fail", "open") or not examples or not set(examples) <= set(reasons):
        return check
    why = "; ".join(reasons[example] for example in examples)
    return replace(check, status="note", evidence=f"accepted ({why}): {check.evidence}", notes=[])
