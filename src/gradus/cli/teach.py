"""`gradus teach`: a teacher answers training tasks, and its episodes are kept."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from gradus.commands.options import ENVIRONMENT, GRADER, KEEP_HISTORY, MAX_NEW_TOKENS, REWARDS, TEMPERATURE, given
from gradus.commands.output import next_command, note, same


def command(
    environment: str = ENVIRONMENT,
    policy: str | None = typer.Option(None, "--policy", "-p", help="The teacher; the environment's own by default."),
    episodes: int = typer.Option(200, "--episodes", "-n", help="How many training tasks."),
    grader: str | None = GRADER,
    reward: list[str] = REWARDS,
    workers: int = typer.Option(1, "--workers", help="Processes, for the environment's own policies."),
    seed: int = typer.Option(0, "--seed", help="Seed of the teacher's own randomness."),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    keep_history: bool | None = KEEP_HISTORY,
    concurrency: int | None = typer.Option(
        None, "--concurrency", min=1, help="Calls of remote:MODEL in flight at once; 8 without it."
    ),
    effort: str | None = typer.Option(None, "--reasoning-effort", help="Sent to remote:MODEL as it is, as in low."),
    price: str | None = typer.Option(
        None,
        "--price",
        metavar="IN,OUT",
        help="US dollars of remote:MODEL per million prompt and completion tokens, as in 0.25,2.",
    ),
    out: Path = typer.Option(Path("teacher.jsonl"), "--out", "-o", help="Where the episodes go."),
) -> None:
    """Store a teacher's episodes on training tasks as JSON lines. Exit code 1 if every episode failed."""
    from gradus import commands

    sampling = given(temperature=temperature, max_new_tokens=max_new_tokens, keep_history=keep_history)
    options = {"episodes": episodes, "grader": grader, "rewards": reward, "workers": workers, "seed": seed}
    remote = given(concurrency=concurrency, reasoning_effort=effort, price=None if price is None else price.split(","))
    summary = commands.teach(environment, policy, out=out, remote=remote, **options, **sampling)
    typer.echo(summary.sentence(out))
    if summary.failed == summary.episodes:
        note(f"every episode failed; gradus show {shlex.quote(str(out))} says why")
        raise typer.Exit(1)
    next_command("sft", environment, "--data", out, *same("reward"))
