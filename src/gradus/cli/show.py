"""`gradus show`: read a stored episode."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes."),
    episode: int = typer.Option(0, "--episode", "-k", help="Which one, from 0; negative counts from the end."),
    as_json: bool = typer.Option(False, "--json", help="Print the stored record."),
) -> None:
    """Show one stored episode: what was seen, answered, rewarded and believed."""
    import json

    from rich.console import Console

    from gradus.core import ConfigError
    from gradus.reports import show_episode
    from gradus.rollouts import encode, read_episodes

    stored = read_episodes(file)
    for problem in stored.problems:
        typer.secho(f"note: {problem}", fg="yellow", err=True)
    count = len(stored.episodes)
    if not -count <= episode < count:
        raise ConfigError(f"{file} holds {count} episodes, got --episode {episode}; use 0 to {count - 1}")
    chosen = stored.episodes[episode]
    if as_json:
        typer.echo(json.dumps(encode(chosen), ensure_ascii=False, indent=1))
        return
    Console().print(show_episode(chosen, _view(stored.environment, chosen)))


def _view(environment: str, episode):
    """The environment's own pictures of the episode, if it can be loaded and has any."""
    from gradus import environments
    from gradus.core import GradusError

    try:
        spec = environments.load(environment)
    except GradusError:  # its data may not be on this machine; the transcript still is
        return None
    return spec.presentation.view(episode) if spec.presentation.view else None
