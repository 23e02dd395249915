"""`gradus sft`: warm-start a model on stored episodes."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import CHANGES, ENVIRONMENT, MEMORY, MODEL, PRESET, RECIPE, REWARDS, TRACKER
from gradus.commands.output import next_command, same


def command(
    environment: str = ENVIRONMENT,
    data: list[Path] = typer.Option(..., "--data", "-d", help="Episodes, as `gradus teach` writes them (repeatable)."),
    model: str | None = MODEL,
    recipe: str | None = RECIPE,
    reward: list[str] = REWARDS,
    changes: list[str] = CHANGES,
    preset: str | None = PRESET,
    memory: str | None = MEMORY,
    tracker: list[str] = TRACKER,
    seed: int | None = typer.Option(None, "--seed", help="Seed."),
    out: Path = typer.Option(Path("runs/sft"), "--out", "-o", help="Folder for the model and its metrics."),
    resume: bool = typer.Option(False, "--resume", help="Go on where a stopped run left off."),
) -> None:
    """Supervised fine-tuning on the action tokens of stored episodes."""
    from gradus import commands

    best = commands.sft(
        environment,
        data,
        out=out,
        resume=resume,
        recipe=recipe,
        model=model,
        rewards=reward,
        settings=changes,
        seed=seed,
        trackers=tracker,
        preset=preset,
        memory=memory,
    )
    typer.echo(f"model: {best}")
    again = same("reward", "recipe", "preset", "memory", "tracker", "seed")
    shared = [word for each in changes if not each.startswith("sft.") for word in ("--set", each)]
    next_command("grpo", environment, "--model", best, *again, *shared)
