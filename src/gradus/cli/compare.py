"""`gradus compare`: runs held against each other."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import JSON
from gradus.commands.output import next_command, note, same, show


def command(
    runs: list[str] = typer.Argument(
        ...,
        help="Run folders (or logs of inspect_ai, .eval or .json), as PATH or NAME=PATH; later ones minus earlier ones.",
    ),
    policy: str | None = typer.Option(None, "--policy", "-p", help="Policy of each run; grpo by default."),
    json_file: str | None = JSON,
    report: Path | None = typer.Option(
        None, "--report", help="Write an HTML report with the curves over each other here."
    ),
) -> None:
    """Compare finished runs, paired over the tasks that all were evaluated on, and list the settings that differ."""
    import gradus

    result = gradus.compare(*runs, policy=policy)
    show(result, json_file)
    if report is not None:
        note(f"report: {result.report(report)}")
    else:
        next_command("compare", *runs, *same("policy"), "--report", "compare.html")
