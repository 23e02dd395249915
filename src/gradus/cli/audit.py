"""`gradus audit`: is this grader worth training on?"""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`, or your own module:attribute."),
    grader: str | None = typer.Option(None, "--grader", "-g", help="The grader to audit; the default one otherwise."),
    episodes: int = typer.Option(60, "--episodes", "-n", help="Paired seeds for every policy of the panel."),
    budget: int = typer.Option(8000, "--budget", help="Episodes the search for a hack may play."),
    policy: str | None = typer.Option(
        None, "--policy", help="Also forecast the signal of this policy (a model folder)."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the search and of random policies."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for audit.json, the figure and the found hack."),
) -> None:
    """Judge a grader before money is spent on it. Exit code 0: pass, 1: fail."""
    from gradus.pipeline.audit import audit_command

    passed = audit_command(
        environment,
        grader=grader,
        episodes=episodes,
        budget=budget,
        policy=policy,
        seed=seed,
        as_json=as_json,
        out=out,
    )
    if not passed:
        raise typer.Exit(1)
