"""`gradus play`: a person plays, and sees at the end whom or what they had before them."""

from __future__ import annotations

import typer


def command(
    environment: str = typer.Argument("rhythm", help="Environment, as in `gradus envs`."),
    seed: int | None = typer.Option(None, "--seed", help="Which task; a different one each day otherwise."),
    condition: str | None = typer.Option(None, "--condition", help="A condition of the environment."),
) -> None:
    """Play one episode yourself in the terminal."""
    from gradus import commands

    commands.play(environment, seed=seed, condition=condition)
