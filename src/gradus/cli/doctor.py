"""`gradus doctor`: is this run healthy?"""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import JSON
from gradus.commands.output import next_command, show


def command(
    run: Path = typer.Argument(..., help="A run folder, or a metrics.jsonl."),
    json_file: str | None = JSON,
) -> None:
    """Diagnose a run. Exit code 0: healthy, 1: warnings, 2: stop, 3: no metrics."""
    from gradus import commands

    result = commands.diagnose(run)
    show(result, json_file)
    if (run / "results.json").is_file():
        next_command("report", run)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
