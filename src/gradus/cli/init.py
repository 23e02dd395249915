"""`gradus init`: a recipe for one's own data or environment."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import MODEL
from gradus.commands.output import next_command, note


def command(
    source: str = typer.Argument(..., help="rows.csv, rows.jsonl, or your own FILE.py:NAME."),
    model: str | None = MODEL,
    out: Path = typer.Option(Path("recipe.toml"), "--out", "-o", help="The recipe to write."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a recipe that is there."),
) -> None:
    """Look at your data or environment, write a recipe that fits it, and say what is missing."""
    from gradus import commands

    for line in commands.init(source, out, model=model, overwrite=overwrite):
        note(line)
    typer.echo(f"recipe: {out}")
    next_command("check", out)
