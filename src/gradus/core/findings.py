"""One finding of a check, on the one scale that the audit, the check before a run, the forecast and the doctor share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from gradus.core.frozen_record import frozen_record

Status = Literal["pass", "note", "open", "warn", "fail"]

# From the best to the worst. ``note``: worth a look. ``open``: what was looked at does not settle it, or nothing could be looked at.
# ``warn``: it would work, and disappoint. ``fail``: it would break, or train on something wrong.
SCALE: tuple[Status, ...] = ("pass", "note", "open", "warn", "fail")
# What a command ends with. 2 is wrong usage, as everywhere.
EXIT_CODES: Mapping[Status, int] = {"pass": 0, "note": 0, "warn": 0, "fail": 1, "open": 3}


@frozen_record
class Finding:
    """What one check says of its subject.

    ``subject``: what was checked, as in ``memory``. ``evidence``: a sentence with the figures. ``remedy``: what to do, empty if nothing is to
    be done.
    """

    status: Status
    subject: str
    evidence: str
    remedy: str = ""


def worst(findings: Iterable[Finding]) -> Status:
    """Returns the worst status among findings; ``pass`` without any.

    >>> worst([Finding(status="note", subject="memory", evidence="3 of 24 GB"), Finding(status="pass", subject="data", evidence="")])
    'note'
    """
    statuses: list[Status] = ["pass", *(finding.status for finding in findings)]
    return max(statuses, key=SCALE.index)
