"""`gradus eval`: policies, conditions, paired seeds, intervals."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import KEEP_HISTORY, MAX_NEW_TOKENS, TEMPERATURE

__all__ = ["command"]


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`, or openenv:ws://HOST:PORT."),
    policy: str = typer.Option(
        ..., "--policy", "-p", help="Policies, separated by commas; `all` for the scripted ones."
    ),
    condition: str = typer.Option(
        "main", "--condition", "-c", help="Conditions, by commas; `all`; the first by default."
    ),
    grader: str | None = typer.Option(None, "--grader", "-g", help="Graders, by commas; the first is the main one."),
    episodes: int | None = typer.Option(None, "--episodes", "-n", help="At most so many per condition."),
    seed: int = typer.Option(0, "--seed", help="Seed of the policies' own randomness."),
    pairs: str | None = typer.Option(
        None, "--pairs", help="Pairs to compare, as a-b, by commas; every pair otherwise."
    ),
    power: float | None = typer.Option(None, "--power", help="Say how many episodes a difference of this size needs."),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    keep_history: bool | None = KEEP_HISTORY,
    out: Path | None = typer.Option(None, "--json", help="Write results.json here."),
    save: Path | None = typer.Option(None, "--save", help="Write the played episodes (JSON lines) here."),
    report: Path | None = typer.Option(None, "--report", help="Write an HTML report here."),
) -> None:
    """Play policies on the same seeds and compare them with intervals."""
    from gradus.pipeline.evaluate import evaluate_command

    evaluate_command(
        environment,
        policies=policy,
        conditions=condition,
        graders=grader,
        episodes=episodes,
        seed=seed,
        pairs=pairs,
        power=power,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        keep_history=keep_history,
        json_path=out,
        episodes_path=save,
        report_path=report,
    )
