"""The findings of a check as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gradus.runs.checks.subject import Finding

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def findings_table(findings: Sequence[Finding], status: str) -> list[Table | Text]:
    """One line a finding, and the status."""
    table = Table(box=None, pad_edge=False)
    for title in ("", "check", "result", "remedy"):
        table.add_column(title, overflow="fold")
    for each in findings:
        table.add_row(Text(each.status, style=_STYLES[each.status]), each.check, Text(each.message), Text(each.remedy))
    return [table, Text(status, style=f"bold {_STYLES[status]}")]
