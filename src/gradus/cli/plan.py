"""`gradus plan`: memory, time and money of GRPO, before it starts."""

from __future__ import annotations

import typer

from gradus.commands.options import CHANGES, JSON, MEMORY, MODEL, PRESET, QUICK, RECIPE
from gradus.commands.output import next_command, same, show


def command(
    environment: str | None = typer.Argument(None, help="Environment, rows, or a TOML recipe, as in `gradus run`."),
    recipe: str | None = RECIPE,
    model: str | None = MODEL,
    preset: str | None = PRESET,
    memory: str | None = MEMORY,
    changes: list[str] = CHANGES,
    quick: bool = QUICK,
    json_file: str | None = JSON,
) -> None:
    """Forecast the GRPO of a recipe; what cannot fit is refused with the setting to change."""
    import gradus
    from gradus.commands.training import recipe_or_data
    from gradus.core import ConfigError

    data, recipe = recipe_or_data(environment, recipe)
    result = gradus.plan(data, recipe=recipe, model=model, preset=preset, memory=memory, settings=changes, quick=quick)
    show(result, json_file)
    if result.problem:
        raise ConfigError(result.problem)
    fitted = [word for each in result.changes for word in ("--set", each)]
    again = same("recipe", "model", "preset", "quick", "changes")
    next_command("check", *([environment] if environment else []), *again, *fitted)
