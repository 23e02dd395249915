"""The end of `gradus run` on one screen: the verdict, one table, promises, costs, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gradus.core.printing import verbose
from gradus.evidence.reports import show_results
from gradus.stats import format_money, format_number

_MOST_MISSED, _MOST_COSTS = 3, 3


def show_end(console: Console, results: Mapping[str, Any], costs: Sequence[Mapping[str, Any]], report: Path) -> None:
    """Print what a run has shown in at most 24 lines; with ``--verbose`` all conditions, graders, promises and costs."""
    console.print(show_results(results, every=verbose()))
    if not results.get("quick"):
        for line in promise_lines(results.get("promises", []), every=verbose()):
            console.print(line, highlight=False)
    console.print(_cost_line(costs, every=verbose()), highlight=False)
    console.print(Text.assemble("report, with all conditions, graders and differences: ", (str(report), "bold")))


def promise_lines(promises: Sequence[Mapping[str, Any]], *, every: bool = False) -> Iterator[str]:
    """Yields what the recipe promised and what came."""
    firm = [each for each in promises if not each["aim"]]
    missed = [each for each in firm if each["met"] is False]
    kept = sum(each["met"] is True for each in firm)
    if firm:
        yield f"promises of the recipe: {kept} of {len(firm)} kept"
    listed = list(promises) if every else [*missed[:_MOST_MISSED], *(each for each in promises if each["aim"])]
    for each in listed:
        kind = "aim" if each["aim"] else "promise"
        met = {
            True: "reached" if each["aim"] else "kept",
            False: "not reached" if each["aim"] else "missed",
            None: "not measured",
        }
        wanted = f"{each['direction']} {each['threshold']:g}"
        yield f"  {kind} {met[each['met']]}: {each['text']} ({format_number(each['value'])}, wanted {wanted})"


def _cost_line(costs: Sequence[Mapping[str, Any]], *, every: bool) -> str:
    """Time and money of a run, and of the stages that took longest."""
    stages = costs if every else sorted(costs, key=lambda row: -row["seconds"])[:_MOST_COSTS]
    parts = ", ".join(f"{row['stage']} {row['seconds']:.0f} s" for row in stages if row["seconds"] >= 0.5)
    money = [row["cost"] for row in costs if row.get("cost") is not None]
    spent = f"; {format_money(sum(money))}" if money else ""
    return f"it took {_duration(sum(row['seconds'] for row in costs))}{f' ({parts})' if parts else ''}{spent}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
