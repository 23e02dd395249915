"""`gradus doctor`: is this run healthy?"""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    run: Path = typer.Argument(..., help="A run folder, or a metrics.jsonl."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Diagnose a run. Exit code 0: healthy, 1: warnings, 2: stop."""
    from gradus.pipeline.doctor import doctor_command

    code = doctor_command(run, as_json=as_json)
    if code:
        raise typer.Exit(code)
