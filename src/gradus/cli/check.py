"""`gradus check`: everything that would go wrong in a run, before it starts."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import CHANGES, JSON, MODEL, PRESET, QUICK, RECIPE, REWARDS
from gradus.commands.output import next_command, same, show


def command(
    environment: str | None = typer.Argument(None, help="Environment, rows, or a TOML recipe, as in `gradus run`."),
    recipe: str | None = RECIPE,
    model: str | None = MODEL,
    reward: list[str] = REWARDS,
    changes: list[str] = CHANGES,
    preset: str | None = PRESET,
    quick: bool = QUICK,
    seed: int | None = typer.Option(None, "--seed", help="Seed of the whole run."),
    out: Path | None = typer.Option(None, "--out", "-o", help="The folder that the run will use."),
    online: bool = typer.Option(False, "--online", help="Ask servers and hubs too; nothing is asked otherwise."),
    json_file: str | None = JSON,
) -> None:
    """Say what would go wrong, with a remedy for each. Exit code 1 if anything would fail."""
    import os

    if not online:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")  # before anything imports the hub's client
    import gradus
    from gradus.commands.training import recipe_or_data

    data, recipe = recipe_or_data(environment, recipe)
    result = gradus.check(
        data,
        recipe=recipe,
        model=model,
        rewards=reward,
        settings=changes,
        preset=preset,
        quick=quick,
        seed=seed,
        out=out,
        online=online,
    )
    show(result, json_file)
    if result.status == "fail":
        raise typer.Exit(1)
    again = same("recipe", "model", "preset", "reward", "changes", "quick", "seed", "out")
    next_command("run", *([environment] if environment else []), *again)
