"""`gradus audit`: is this grader worth training on?"""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import ENVIRONMENT, GRADER, JSON, REWARDS
from gradus.cli.output import next_command, note, show

__all__ = ["command"]


def command(
    environment: str = ENVIRONMENT,
    grader: str | None = GRADER,
    reward: list[str] = REWARDS,
    episodes: int = typer.Option(60, "--episodes", "-n", help="Paired seeds for every policy of the panel."),
    budget: int = typer.Option(8000, "--budget", help="Episodes that the search for a hack may roll out."),
    policy: str | None = typer.Option(None, "--policy", "-p", help="Also forecast the signal of this policy."),
    seed: int = typer.Option(0, "--seed", help="Seed of the search and of random policies."),
    review: Path | None = typer.Option(
        None,
        "--review",
        help="File of marks: asks you about accepted answers that no rule settles, and keeps what you say.",
    ),
    unsafe: bool = typer.Option(
        False, "--unsafe", help="Try answers that may be executed even if no sandbox can be made."
    ),
    seconds: float = typer.Option(
        25.0, "--seconds", min=1.0, help="What all calls of a grader of one-turn tasks may take together."
    ),
    json_file: str | None = JSON,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for audit.json, the figure and the hack."),
) -> None:
    """Judge a grader before money is spent on it. Exit code 0: pass, 1: fail, 2: unresolved."""
    import gradus

    result = gradus.audit(
        environment,
        grader,
        rewards=reward,
        episodes=episodes,
        budget=budget,
        policy=policy,
        seed=seed,
        review=review,
        unsafe=unsafe,
        seconds=seconds,
    )
    if review is not None and json_file is None:
        result.ask_person(review)
    show(result, json_file)
    for path in result.save(out) if out is not None else ():
        note(f"written: {path}")
    rewards = [word for each in reward for word in ("--reward", each)]
    if result.verdict != "fail":
        next_command("run", environment, *rewards)
        if result.verdict == "unresolved":
            raise typer.Exit(2)
        return
    again = [word for word in ("--grader", grader) if grader is not None]
    if out is None:
        next_command("audit", environment, *again, *rewards, "--out", "audit")  # the evidence, to mend the grader by
    elif result.hack is not None:
        next_command("show", out / "hack.jsonl")
    else:
        next_command("audit", environment, *again, *rewards)  # once the grader is mended
    raise typer.Exit(1)
