"""`gradus report`: one HTML file that a person can read."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.output import next_command


def command(run: Path = typer.Argument(..., help="A run folder.")) -> None:
    """Write RUN/report.html from what the run stored; it opens offline."""
    import gradus

    typer.echo(f"report: {gradus.load_run(run).report(show=False)}")
    if (run / "results.json").is_file():
        next_command("show", run, "--last")
