"""`gradus grpo`: train a model by group-relative policy optimization."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import CHANGES, ENVIRONMENT, GRADER, MEMORY, PRESET, RECIPE, REWARDS, TRACKER
from gradus.commands.output import next_command


def command(
    environment: str = ENVIRONMENT,
    model: str = typer.Option(..., "--model", "-m", help="The model to start from: a folder or a hub name."),
    grader: str | None = GRADER,
    reward: list[str] = REWARDS,
    recipe: str | None = RECIPE,
    changes: list[str] = CHANGES,
    preset: str | None = PRESET,
    memory: str | None = MEMORY,
    tracker: list[str] = TRACKER,
    seed: int | None = typer.Option(None, "--seed", help="Seed."),
    out: Path = typer.Option(Path("runs/grpo"), "--out", "-o", help="Folder for checkpoints and metrics."),
    resume: bool = typer.Option(False, "--resume", help="Go on where a stopped run left off, bit for bit."),
) -> None:
    """Roll out groups, grade them, and make what got more reward more likely."""
    from gradus import commands

    best = commands.grpo(
        environment,
        model,
        out=out,
        resume=resume,
        recipe=recipe,
        rewards=reward,
        settings=changes,
        seed=seed,
        grader=grader,
        trackers=tracker,
        preset=preset,
        memory=memory,
    )
    typer.echo(f"model: {best}")
    next_command("doctor", out)
