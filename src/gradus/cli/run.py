"""`gradus run`: audit, teacher, SFT, GRPO, evaluation and report, in order."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import PRESET, TRACKER

__all__ = ["command"]


def command(
    environment: str | None = typer.Argument(None, help="Environment, as in `gradus envs`; or give --recipe."),
    recipe: Path | None = typer.Option(None, "--recipe", "-r", help="A TOML recipe; the environment's own otherwise."),
    model: str | None = typer.Option(None, "--model", "-m", help="Model folder or hub name; a nano model otherwise."),
    changes: list[str] = typer.Option(
        [], "--set", "-s", help="Change a setting: --set grpo.max_steps=20 (repeatable)."
    ),
    preset: str | None = PRESET,
    tracker: list[str] = TRACKER,
    quick: bool = typer.Option(False, "--quick", help="Every stage at toy size, for a first look."),
    seed: int | None = typer.Option(None, "--seed", help="Seed of the whole run."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Run folder; runs/ENVIRONMENT otherwise."),
    redo: bool = typer.Option(False, "--redo", help="Do stages again whose settings have changed."),
) -> None:
    """Do everything: from a teacher to a trained model and the proof that it got better."""
    from gradus.pipeline import load_recipe, run_recipe

    found = load_recipe(
        environment, path=recipe, model=model, changes=changes, quick=quick, seed=seed, trackers=tracker, preset=preset
    )
    run_recipe(found, out=out, redo=redo)
