"""`gradus sft`: warm-start a model on stored episodes."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import PRESET, TRACKER

__all__ = ["command"]


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`."),
    data: list[Path] = typer.Option(..., "--data", "-d", help="Episodes, as `gradus teach` writes them (repeatable)."),
    model: str | None = typer.Option(None, "--model", "-m", help="Model folder or hub name; a nano model otherwise."),
    recipe: Path | None = typer.Option(None, "--recipe", "-r", help="A TOML recipe; the environment's own otherwise."),
    changes: list[str] = typer.Option([], "--set", "-s", help="Change a setting: --set sft.epochs=2 (repeatable)."),
    preset: str | None = PRESET,
    tracker: list[str] = TRACKER,
    seed: int | None = typer.Option(None, "--seed", help="Seed."),
    out: Path = typer.Option(Path("runs/sft"), "--out", "-o", help="Folder for the model and its metrics."),
    resume: bool = typer.Option(False, "--resume", help="Go on where a stopped run left off."),
) -> None:
    """Supervised fine-tuning on the action tokens of stored episodes."""
    from gradus.pipeline import load_recipe
    from gradus.pipeline.stages import sft_alone

    found = load_recipe(
        environment, path=recipe, model=model, changes=changes, seed=seed, trackers=tracker, preset=preset
    )
    typer.echo(f"model: {sft_alone(found, data, out, resume=resume)}")
