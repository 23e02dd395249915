"""`gradus regrade`: what another grader says of stored episodes."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.show import ENV
from gradus.commands.options import JSON, REWARDS
from gradus.commands.output import next_command, note, same, show
from gradus.core.printing import go_around


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes."),
    grader: str | None = typer.Option(None, "--grader", "-g", help="The grader to apply; or give --reward."),
    reward: list[str] = REWARDS,
    against: str | None = typer.Option(
        None,
        "--against",
        help="Compare every policy of the file with this one on the same tasks: wins, reward, metrics. If the file lacks it, it is rolled out.",
    ),
    environment: str | None = ENV,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the regraded episodes here (the input is kept)."),
    json_file: str | None = JSON,
) -> None:
    """Grade stored episodes again; only a policy to compare --against is rolled out. Exit code 1 if no episode got a reward."""
    from gradus import commands

    result = commands.regrade(file, grader, rewards=reward, against=against, environment=environment)
    for problem in result.problems:
        go_around(problem, "the rest is used")
    if out is not None:
        note(f"written: {result.save(out)}")
    show(result, json_file)
    if result.failure:
        note(f"no episode got a reward; the first says why: {result.failure}")
        raise typer.Exit(1)
    next_command("show", out or file, *same("environment"))
