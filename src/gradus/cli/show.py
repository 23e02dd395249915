"""`gradus show`: read a stored episode, or the newest ones of a run."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["command"]


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes (may be .gz), or a run folder with --last."),
    episode: int = typer.Option(0, "--episode", "-k", help="Which one, from 0; negative counts from the end."),
    last: bool = typer.Option(
        False, "--last", help="Best, worst, random and invalid episode of the newest stored step."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the stored record."),
) -> None:
    """Show stored episodes: what was seen, answered, rewarded and believed."""
    import json

    from rich.console import Console

    from gradus.pipeline.stored_episodes import newest_file, pick_episode, samples
    from gradus.reports import show_episode
    from gradus.rollouts import encode, read_episodes

    path = newest_file(file) if last or file.is_dir() else file
    stored = read_episodes(path)
    for problem in stored.problems:
        typer.secho(f"note: {problem}", fg="yellow", err=True)
    chosen = samples(stored.episodes) if path != file else {"": pick_episode(stored.episodes, episode, path)}
    if as_json:
        records = {name: encode(each) for name, each in chosen.items()}
        typer.echo(json.dumps(records.get("", records), ensure_ascii=False, indent=1))
        return
    console = Console()
    for name, each in chosen.items():
        if name:
            console.rule(f"{name} of {path.name}", align="left")
        console.print(show_episode(each, _view(stored.environment, each)))


def _view(environment: str, episode):
    """The environment's own pictures of the episode, if it can be loaded and has any."""
    from gradus import environments
    from gradus.core import GradusError

    try:
        spec = environments.load(environment)
    except GradusError:  # its data may not be on this machine; the transcript still is
        return None
    return spec.presentation.view(episode) if spec.presentation.view else None
