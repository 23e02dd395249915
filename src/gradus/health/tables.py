"""Diagnoses for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradus.health.diagnose import Diagnosis, advice

__all__ = ["diagnosis_rows", "tables"]

_STYLES = {"info": "dim", "warn": "yellow", "stop": "bold red"}


def diagnosis_rows(diagnoses: Sequence[Diagnosis]) -> list[tuple[str, str, str, str, str]]:
    """Severity, rule, steps, evidence and remedy of each."""
    return [(each.severity, each.rule, _steps(each), each.evidence, each.remedy) for each in diagnoses]


def tables(diagnoses: Sequence[Diagnosis]) -> list[Any]:
    """A table of the diagnoses, if there are any, and the line to act on, as rich renderables."""
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    if diagnoses:
        table = Table(box=None, padding=(0, 2, 1, 0))
        for name in ("", "diagnosis", "steps", "evidence", "remedy"):
            table.add_column(name, no_wrap=name in ("", "steps"), overflow="fold")
        for each, row in zip(diagnoses, diagnosis_rows(diagnoses), strict=True):
            table.add_row(Text(row[0], style=_STYLES[each.severity]), *(Text(cell) for cell in row[1:]))
        shown.append(table)
    return [*shown, Text(advice(diagnoses), style="bold")]


def _steps(each: Diagnosis) -> str:
    if each.first_step == each.last_step:
        return str(each.first_step)
    return f"{each.first_step}-{'' if each.ongoing else each.last_step} ({each.steps})"
