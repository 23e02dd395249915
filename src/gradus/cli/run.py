"""`gradus run`: audit, teacher, SFT, GRPO, evaluation and report, in order."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.commands.options import CHANGES, MEMORY, MODEL, PRESET, QUICK, RECIPE, REWARDS, TRACKER
from gradus.commands.output import next_command


def command(
    environment: str | None = typer.Argument(
        None, help="Environment, as in `gradus envs`; your rows.jsonl or rows.csv; FILE.py:NAME; or give --recipe."
    ),
    recipe: str | None = RECIPE,
    model: str | None = MODEL,
    reward: list[str] = REWARDS,
    changes: list[str] = CHANGES,
    preset: str | None = PRESET,
    memory: str | None = MEMORY,
    tracker: list[str] = TRACKER,
    quick: bool = QUICK,
    seed: int | None = typer.Option(None, "--seed", help="Seed of the whole run."),
    seeds: int | None = typer.Option(
        None, "--seeds", help="Train from so many seeds; intervals are then over seeds and tasks."
    ),
    parallel: int | None = typer.Option(
        None, "--parallel", help="Seeds trained at a time, one thread each; by default as many as cores are free."
    ),
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Run folder; otherwise runs/ENVIRONMENT, or runs/NAME for a recipe that has a name, with -quick at toy size.",
    ),
    redo: bool = typer.Option(False, "--redo", help="Do stages again whose settings, data or code have changed."),
    anyway: bool = typer.Option(False, "--anyway", help="Go on although the audit of the grader failed."),
) -> None:
    """Do everything: from a teacher to a trained model and the proof that it got better."""
    import gradus
    from gradus import commands
    from gradus.commands.training import recipe_or_data

    data, recipe = recipe_or_data(environment, recipe)
    result = gradus.run(
        data,
        recipe=recipe,
        model=model,
        rewards=reward,
        settings=changes,
        quick=quick,
        seed=seed,
        out=out,
        redo=redo,
        anyway=anyway,
        trackers=tracker,
        preset=preset,
        memory=memory,
        seeds=seeds,
        parallel=parallel,
    )
    if commands.can_chat(result.folder):
        next_command("chat", result.folder)
    else:
        next_command("show", result.folder, "--last")
