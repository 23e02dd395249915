"""Findings of a check: one line each, with a status and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradus.core import GradusError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table. ``warn``: a run would go through, and disappoint. ``fail``: a run would break, or train on something wrong.

    ``skip``: could not be looked at. ``remedy`` is empty if nothing is to be done.
    """

    check: str = ""
    status: Literal["pass", "warn", "fail", "skip"]
    message: str
    remedy: str = ""


def passed(message: str) -> Finding:
    return Finding(status="pass", message=message)


def warned(message: str, remedy: str) -> Finding:
    return Finding(status="warn", message=message, remedy=remedy)


def failed(message: str, remedy: str) -> Finding:
    return Finding(status="fail", message=message, remedy=remedy)


def skipped(message: str, remedy: str) -> Finding:
    return Finding(status="skip", message=message, remedy=remedy)


def from_error(error: GradusError, check: str, way: str = "") -> Finding:
    """Errors end in the way out, behind a semicolon."""
    message, _, remedy = str(error).partition("; ")
    return Finding(check=check, status="fail", message=message, remedy=remedy or way)


def status_of(findings: Sequence[Finding]) -> str:
    """``fail`` if anything fails, else ``warn`` if anything does, else ``pass``."""
    statuses = {finding.status for finding in findings}
    return next((status for status in ("fail", "warn") if status in statuses), "pass")
