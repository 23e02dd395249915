"""What `gradus run` ends with on the terminal, besides the tables of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show_claims", "show_costs"]

_MET = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "[dim]not measured[/dim]"}


def show_claims(console: Console, claims: Sequence[Mapping[str, Any]]) -> None:
    """What the recipe promised, and what came."""
    if not claims:
        return
    table = Table(title="what the recipe promises", box=None, pad_edge=False, title_justify="left")
    table.add_column("promise", overflow="fold")
    table.add_column("condition")
    table.add_column("figure", overflow="fold", style="dim")
    table.add_column("came", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for claim in claims:
        value = "–" if claim["value"] is None else f"{claim['value']:.3f}"
        wanted = f"{claim['direction']} {claim['threshold']:g}"
        table.add_row(claim["text"], claim["condition"], claim["figure"], value, wanted, _MET[claim["met"]])
    console.print(table)


def show_costs(console: Console, costs: Sequence[Mapping[str, Any]]) -> None:
    """Time, tokens and money of each stage."""
    table = Table(title="what it cost", box=None, pad_edge=False, title_justify="left")
    table.add_column("stage")
    for column in ("time", "episodes", "tokens", "money"):
        table.add_column(column, justify="right")
    for row in costs:
        tokens = row.get("tokens") or (row.get("prompt_tokens") or 0) + (row.get("completion_tokens") or 0)
        money = row.get("cost")
        table.add_row(
            row["stage"],
            f"{row['seconds']:.0f} s",
            f"{row['episodes']:,}" if row.get("episodes") else "",
            f"{tokens:,}" if tokens else "",
            "" if money is None else f"${money:.2f}",
        )
    table.add_row("all", f"{sum(row['seconds'] for row in costs):.0f} s", style="bold")
    console.print(table)
