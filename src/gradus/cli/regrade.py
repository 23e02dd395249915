"""`gradus regrade`: what another grader says of stored episodes."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes."),
    grader: str = typer.Option(..., "--grader", help="The grader to apply."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the regraded episodes here (the input is kept)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Grade stored episodes again with another grader. Nothing is played."""
    import json
    from math import fsum

    from rich.console import Console
    from rich.table import Table

    from gradus import environments
    from gradus.rollouts import read_episodes, regrade, write_episodes

    found = read_episodes(file)
    for problem in found.problems:
        typer.secho(f"note: {problem}", fg="yellow", err=True)
    spec = environments.load(found.environment)
    chosen = spec.grader(grader)
    graded = regrade(spec, found.episodes, chosen)
    if out is not None:
        write_episodes(out, graded, environment=found.environment, note=f"regraded with {grader}")

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fsum(known) / len(known) if known else None

    before = mean([each.reward.value if each.reward else None for each in found.episodes])
    after = mean([each.reward.value if each.reward else None for each in graded])
    components = {
        name: mean([each.reward.components.get(name) if each.reward else None for each in graded])
        for name in chosen.weights
    }
    names = sorted({each.reward.grader for each in found.episodes if each.reward})
    if as_json:
        summary = {
            "grader": grader,
            "episodes": len(graded),
            "reward": after,
            "before": before,
            "components": components,
        }
        typer.echo(json.dumps(summary, indent=1))
        return
    table = Table(title=f"{len(graded)} episodes of {found.environment}", box=None)
    table.add_column("reward under")
    table.add_column("mean", justify="right")
    table.add_row(", ".join(names) or "no grader", _figure(before))
    table.add_row(grader, _figure(after), style="bold")
    for name, value in components.items():
        table.add_row(f"  {name} (weight {chosen.weights[name]:g})", _figure(value))
    Console().print(table)
    if out is not None:
        typer.echo(f"written: {out}")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
