"""`gradus plan`: memory, time and money of a GRPO run, before it starts."""

from __future__ import annotations

import typer

from gradus.cli.options import PRESET

__all__ = ["command"]


def command(
    recipe: str = typer.Argument(..., help="A TOML recipe, a recipe that comes with Gradus, or an environment."),
    model: str | None = typer.Option(None, "--model", "-m", help="Model folder or hub name; a nano model otherwise."),
    preset: str | None = PRESET,
    memory: str | None = typer.Option(
        None, "--memory", help="Fit the settings to a card of this size, as in 24GB, and print what to set."
    ),
    changes: list[str] = typer.Option([], "--set", "-s", help="Change a setting, as in `gradus run` (repeatable)."),
    quick: bool = typer.Option(False, "--quick", help="Plan the recipe at toy size."),
) -> None:
    """Forecast a run of a recipe; what cannot fit is refused with the setting to change."""
    from rich.console import Console
    from rich.table import Table

    from gradus.pipeline.checks import load_named
    from gradus.pipeline.checks.plan import fitted_plan
    from gradus.planning.forecast import as_rows, check_fits

    found = load_named(recipe, model=model, preset=preset, changes=changes, quick=quick)
    plan, config, changed = fitted_plan(found, preset=preset, memory=memory)
    table = Table(title=f"{plan.model.name} on {plan.hardware.name}", box=None, show_header=False, title_justify="left")
    for row in as_rows(plan):
        table.add_row(*row)
    console = Console()
    console.print(table)
    check_fits(plan, config)
    if changed:
        console.print("it fits with: " + " ".join(f"--set {each}" for each in changed), highlight=False)
