"""`gradus doctor`: is this run healthy?"""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import JSON
from gradus.cli.output import next_command, print_json

__all__ = ["command"]


def command(
    run: Path = typer.Argument(..., help="A run folder, or a metrics.jsonl."),
    json_file: str | None = JSON,
) -> None:
    """Diagnose a run. Exit code 0: healthy, 1: warnings, 2: stop."""
    from gradus.health import exit_code
    from gradus.pipeline.doctor import diagnosis_of, show_diagnoses

    document = diagnosis_of(run)
    if print_json(document, json_file):
        from rich.console import Console

        show_diagnoses(document, Console())
    if (run / "results.json").is_file():
        next_command("report", run)
    if code := exit_code(document["status"]):
        raise typer.Exit(code)
