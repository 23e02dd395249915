"""`gradus grpo`: train a model by group-relative policy optimization."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import PRESET, TRACKER

__all__ = ["command"]


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`."),
    model: str = typer.Option(..., "--model", "-m", help="The model to start from: a folder or a hub name."),
    grader: str | None = typer.Option(None, "--grader", "-g", help="What pays; the environment's default otherwise."),
    recipe: Path | None = typer.Option(None, "--recipe", "-r", help="A TOML recipe; the environment's own otherwise."),
    changes: list[str] = typer.Option(
        [], "--set", "-s", help="Change a setting: --set grpo.max_steps=20 (repeatable)."
    ),
    preset: str | None = PRESET,
    tracker: list[str] = TRACKER,
    seed: int | None = typer.Option(None, "--seed", help="Seed."),
    out: Path = typer.Option(Path("runs/grpo"), "--out", "-o", help="Folder for checkpoints and metrics."),
    resume: bool = typer.Option(False, "--resume", help="Go on where a stopped run left off, bit for bit."),
) -> None:
    """Play groups, pay them, and make what paid more likely."""
    from gradus.pipeline import load_recipe
    from gradus.pipeline.stages import grpo_alone

    found = load_recipe(
        environment,
        path=recipe,
        model=model,
        changes=changes,
        seed=seed,
        grader=grader,
        trackers=tracker,
        preset=preset,
    )
    typer.echo(f"model: {grpo_alone(found, out, resume=resume)}")
