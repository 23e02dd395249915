"""The audited graders of public suites as a page: what the audit says of each, with its badge."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from gradus.core.files import write_text
from gradus.core.printing import beginning
from gradus.evidence.reports import audit_badge

_ORDER = ("fail", "unresolved", "pass")
_EVIDENCE = 60  # characters
_TOP = """# Public graders, audited

{counts}, of {n} graders of the suite `{suite}`, on {day}. The audit asks each grader about right and wrong answers. It needs no model.
A verdict is about what can be exploited. It does not judge the suite. `by hand` is what a reader of the code said before the audit's
probes were written: if the two differ, one of them is wrong. Those that fail stand in the table.

Written by `python benchmarks/scoreboard --part {part} --seed {seed} --out FOLDER`. [What we found](audit.md#exploits-in-public-graders) tells the flaws, and [the
audit, measured](audit.md#how-often-is-it-right) says how often verdicts are right. `gradus audit {suite}:NAME --out FOLDER` writes the card and the badge of one
grader.

| grader | by hand | checks that failed | evidence |
|---|---|---|---|
"""


def write_leaderboard(result: Mapping[str, Any], folder: Path) -> None:
    """Writes leaderboard.md, and the badges that it shows, for a part whose graders are a suite's."""
    write_text(folder / "leaderboard.md", leaderboard_page(result))
    (folder / "figures").mkdir(exist_ok=True)
    for verdict in _ORDER:
        write_text(folder / "figures" / f"badge_{verdict}.svg", audit_badge(verdict))


def leaderboard_page(result: Mapping[str, Any], suite: str = "reasoning-gym") -> str:
    """The page as Markdown: failures first, then by name."""
    rows: Sequence[Mapping[str, Any]] = sorted(
        result["rows"], key=lambda row: (_ORDER.index(row["verdict"]), row["name"])
    )
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in _ORDER)
    top = _TOP.format(
        counts=counts, n=len(rows), suite=suite, day=date.today(), part=result["part"], seed=result["seed"]
    )
    failed = "".join(f"| {' | '.join(_cells(row))} |\n" for row in rows if row["verdict"] == "fail")
    return top + failed + "".join(_named(verdict, rows) for verdict in _ORDER[1:])


def _named(verdict: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The graders of a verdict that has nothing to show, with what a reader said of them if it is not ``sound``."""
    names = [
        row["name"] if row["label"] == "sound" else f"{row['name']} ({row['label']})"
        for row in rows
        if row["verdict"] == verdict
    ]
    return f"\n![{verdict}](figures/badge_{verdict}.svg) {', '.join(names) or 'none'}.\n"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["name"], row["label"], ", ".join(row["failed"]), _opening(row["evidence"])


def _opening(evidence: str) -> str:
    """Writes the beginning of the evidence, which opens to the whole, as a cell can hold it."""
    whole = " ".join(evidence.split())
    first = beginning(whole, _EVIDENCE)
    if first == whole:
        return _in_cell(whole)
    return f"<details><summary>{_in_cell(first)}</summary>{_in_cell(whole)}</details>"


def _in_cell(text: str) -> str:
    """Text as code in HTML: Markdown's own marks and the cell's border would end it."""
    escaped = html.escape(text, quote=False).translate({ord(mark): f"&#{ord(mark)};" for mark in "|`*_"})
    return f"<code>{escaped}</code>" if escaped else ""
