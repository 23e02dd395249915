"""Prints the end of `gradus run`: promises, costs, and advice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradus.stats import format_money, format_number, format_signed

_MET = {True: Text("met", "green"), False: Text("missed", "red"), None: Text("not measured", "dim")}


def show_promises(
    console: Console, promises: Sequence[Mapping[str, Any]], folder: Path, *, quick: bool = False
) -> None:
    """Print what the recipe promised, what came, and advice on each promise that was missed."""
    if not promises:
        return
    if quick:
        console.print("what the recipe promises: not checked at toy size", highlight=False)
        return
    table = Table(title="what the recipe promises", box=None, pad_edge=False, title_justify="left")
    table.add_column("promise")  # with its figure under it: in a column of its own long names would be cut
    table.add_column("condition", no_wrap=True)
    table.add_column("measured", justify="right")
    table.add_column("required", justify="right")
    table.add_column("")
    for promise in promises:
        wanted = f"{promise['direction']} {promise['threshold']:g}"
        table.add_row(
            Text.assemble(promise["text"], "\n", (promise["figure"], "dim")),
            Text(promise["condition"]),
            format_number(promise["value"]),
            wanted,
            _MET[promise["met"]],
        )
    console.print(table)
    missed = [each for each in promises if each["met"] is False]
    if missed:
        console.print(f"{len(missed)} missed. What to do:")
        for line in dict.fromkeys(line for each in missed for line in _advice(each, folder)):
            console.print(f"  - {line}", highlight=False)


def _advice(promise: Mapping[str, Any], folder: Path) -> list[str]:
    """Returns what to try, by the figure that was missed."""
    value, bound = promise["value"], promise["figure"].rpartition(" ")[2]
    if bound in ("low", "high") and promise["threshold"] == 0:
        way = (
            f"the interval reaches past 0 ({format_signed(value)}); more tasks (eval.episodes) make it narrower, more "
            "seeds (--seeds) say if the gain stays, a longer run (grpo.max_steps) makes it larger"
        )
    elif promise["figure"].startswith("sft"):
        way = "longer SFT (sft.epochs, sft.max_steps) or more of the teacher (teach.episodes)"
    else:
        way = f"if the curve in {folder / 'report.html'} still rises, train longer (grpo.max_steps); see gradus docs when_not"
    return [f"gradus doctor {shlex.quote(str(folder))} says what went wrong in training", f"{promise['text']}: {way}"]


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
            "" if money is None else format_money(money),
        )
    table.add_row("all", f"{sum(row['seconds'] for row in costs):.0f} s", style="bold")
    console.print(table)
