"""Findings of a check: one line each, with a status and a remedy, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradus.core import GradusError
from gradus.core.documents import SCHEMA

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


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


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as `gradus check --json` prints them."""
    return {"schema": SCHEMA, "status": status_of(findings), "checks": [vars(finding) for finding in findings]}


def findings_table(findings: Sequence[Finding], status: str) -> list[Any]:
    """One line a finding, and the status."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("", "check", "result", "remedy"):
        table.add_column(title, overflow="fold")
    for each in findings:
        table.add_row(Text(each.status, style=_STYLES[each.status]), each.check, Text(each.message), Text(each.remedy))
    return [table, Text(status, style=f"bold {_STYLES[status]}")]
