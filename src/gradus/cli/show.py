"""`gradus show`: read a stored episode, or the newest ones of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import JSON
from gradus.commands.output import next_command, same, show
from gradus.core.printing import go_around

ENV = typer.Option(
    None, "--env", help="The environment of the episodes, if it is your own code: FILE.py:NAME or module:attribute."
)


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes (may be .gz), or a run folder."),
    episode: int = typer.Option(0, "--episode", "-k", help="Which one, from 0; negative counts from the end."),
    last: bool = typer.Option(
        False, "--last", help="Best, worst, random and invalid episode of a file, or of a run's newest stored step."
    ),
    diff: bool = typer.Option(
        False, "--diff", help="All members of the episode's group: what each got, and where their answers differ."
    ),
    environment: str | None = ENV,
    json_file: str | None = JSON,
) -> None:
    """Show stored episodes: what was seen, answered, rewarded and believed."""
    from gradus import commands

    result = commands.show(file, episode, newest=last, compared=diff, environment=environment)
    for problem in result.problems:
        go_around(problem, "the rest is used")
    show(result, json_file)
    if result.path == file and not last and not diff and 0 <= episode < result.count - 1:
        next_command("show", file, "--episode", episode + 1, *same("environment"))
