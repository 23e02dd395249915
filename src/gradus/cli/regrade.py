"""`gradus regrade`: what another grader says of stored episodes."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from pathlib import Path
from typing import Any

import typer

from gradus.cli.options import JSON, REWARDS
from gradus.cli.output import next_command, note, print_json
from gradus.cli.show import ENV, environment_of

__all__ = ["command"]


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes."),
    grader: str | None = typer.Option(None, "--grader", "-g", help="The grader to apply; or give --reward."),
    reward: list[str] = REWARDS,
    environment: str | None = ENV,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the regraded episodes here (the input is kept)."),
    json_file: str | None = JSON,
) -> None:
    """Grade stored episodes again with another grader. Nothing is rolled out."""
    from gradus.api.environments import with_rewards
    from gradus.core import ConfigError
    from gradus.rollouts import read_episodes, regrade, write_episodes

    if (grader is None) == (not reward):
        raise ConfigError("give --grader NAME or --reward NAME=WEIGHT, one of them")
    stored = read_episodes(file)
    for problem in stored.problems:
        note(f"note: {problem}")
    spec = environment_of(stored.environment, environment)
    spec = with_rewards(spec, reward) if reward else spec
    chosen = spec.grader(grader)
    graded = regrade(spec, stored.episodes, chosen)
    if out is not None:
        write_episodes(out, graded, environment=stored.environment, note=f"regraded with {chosen.name}")
        note(f"written: {out}")
    before, after = (
        _mean(each.reward.value if each.reward else None for each in several) for several in (stored.episodes, graded)
    )
    components = {
        name: _mean(each.reward.components.get(name) if each.reward else None for each in graded)
        for name in chosen.weights
    }
    summary = {
        "grader": chosen.name, "episodes": len(graded), "reward": after, "before": before, "components": components,
    }  # fmt: skip
    if print_json(summary, json_file):
        names = sorted({each.reward.grader for each in stored.episodes if each.reward})
        _table(summary, ", ".join(names) or "no grader", chosen.weights, f"{len(graded)} episodes of {spec.name}")
    next_command("show", out or file)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def _table(summary: dict[str, Any], before: str, weights: Any, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None)
    table.add_column("reward under")
    table.add_column("mean", justify="right")
    table.add_row(before, _figure(summary["before"]))
    table.add_row(summary["grader"], _figure(summary["reward"]), style="bold")
    for name, value in summary["components"].items():
        table.add_row(f"  {name} (weight {weights[name]:g})", _figure(value))
    Console().print(table)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
