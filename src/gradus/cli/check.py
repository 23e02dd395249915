"""`gradus check`: everything that would go wrong in a run, before it starts."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def command(
    recipe: str = typer.Argument(..., help="A TOML recipe, a recipe that comes with Gradus, or an environment."),
    model: str | None = typer.Option(None, "--model", "-m", help="Model folder or hub name, as in `gradus run`."),
    changes: list[str] = typer.Option([], "--set", "-s", help="Change a setting, as in `gradus run` (repeatable)."),
    quick: bool = typer.Option(False, "--quick", help="Check the recipe at toy size."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The run folder that is meant; runs/ENVIRONMENT otherwise."
    ),
    online: bool = typer.Option(False, "--online", help="Ask servers and hubs too; nothing is asked otherwise."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Say what would go wrong, with a remedy for each. Exit code 1 if anything would fail."""
    import json
    import os

    if not online:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")  # before anything imports the hub's client
    from gradus.pipeline.checks import check_recipe, status_of, to_json

    findings = check_recipe(recipe, out=out, online=online, model=model, changes=changes, quick=quick)
    status = status_of(findings)
    if as_json:
        typer.echo(json.dumps(to_json(findings), indent=1))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for title in ("", "check", "what was found", "remedy"):
            table.add_column(title, overflow="fold")
        for each in findings:
            table.add_row(
                Text(each.status, style=_STYLES[each.status]), each.check, Text(each.message), Text(each.remedy)
            )
        Console().print(table)
        typer.secho(status, bold=True, fg=_STYLES[status])
    if status == "fail":
        raise typer.Exit(1)
