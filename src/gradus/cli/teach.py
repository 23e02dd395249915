"""`gradus teach`: a teacher plays training tasks, and its episodes are kept."""

from __future__ import annotations

from pathlib import Path

import typer

from gradus.cli.options import KEEP_HISTORY, MAX_NEW_TOKENS, TEMPERATURE

__all__ = ["command"]


def command(
    environment: str = typer.Argument(..., help="Environment, as in `gradus envs`."),
    policy: str | None = typer.Option(None, "--policy", help="The teacher; the environment's own by default."),
    episodes: int = typer.Option(200, "--episodes", "-n", help="How many training tasks to play."),
    grader: str | None = typer.Option(None, "--grader", help="Grader; the environment's default otherwise."),
    workers: int = typer.Option(1, "--workers", help="Processes that play, for the environment's own policies."),
    seed: int = typer.Option(0, "--seed", help="Seed of the teacher's own randomness."),
    temperature: float | None = TEMPERATURE,
    max_new_tokens: int | None = MAX_NEW_TOKENS,
    keep_history: bool | None = KEEP_HISTORY,
    out: Path = typer.Option(Path("teacher.jsonl"), "--out", "-o", help="Where the episodes go."),
) -> None:
    """Play training tasks with a teacher and store the episodes as JSON lines."""
    from gradus import environments
    from gradus.pipeline import make_policy, progress_bar, teach

    spec = environments.load(environment)
    name = policy or spec.teacher
    if name is None:
        from gradus.core import ConfigError

        raise ConfigError(f"{environment} has no teacher of its own; name one with --policy, for example remote:MODEL")
    teacher = make_policy(spec, name, temperature=temperature, max_new_tokens=max_new_tokens, keep_history=keep_history)
    with progress_bar(f"teach {name}", episodes, "episodes") as advance:
        summary = teach(
            spec,
            teacher,
            episodes=episodes,
            seed=seed,
            grader=spec.grader(grader),
            path=out,
            workers=workers,
            progress=advance,
        )
    typer.echo(summary.sentence(out))
