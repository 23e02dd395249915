"""`gradus show`: read a stored episode, or the newest ones of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradus.cli.options import JSON
from gradus.cli.output import next_command, note, print_json

if TYPE_CHECKING:
    from gradus.core import EnvironmentSpec

__all__ = ["ENV", "command", "environment_of"]

ENV = typer.Option(
    None, "--env", help="The environment of the episodes, if it is your own code: FILE.py:NAME or module:attribute."
)


def command(
    file: Path = typer.Argument(..., help="A JSONL file of episodes (may be .gz), or a run folder with --last."),
    episode: int = typer.Option(0, "--episode", "-k", help="Which one, from 0; negative counts from the end."),
    last: bool = typer.Option(
        False, "--last", help="Best, worst, random and invalid episode of the newest stored step."
    ),
    environment: str | None = ENV,
    json_file: str | None = JSON,
) -> None:
    """Show stored episodes: what was seen, answered, rewarded and believed."""
    from rich.console import Console

    from gradus.core import GradusError
    from gradus.pipeline.stored_episodes import newest_file, pick_episode, samples
    from gradus.reports import show_episode
    from gradus.rollouts import encode, read_episodes

    path = newest_file(file) if last or file.is_dir() else file
    stored = read_episodes(path)
    for problem in stored.problems:
        note(f"note: {problem}")
    chosen = samples(stored.episodes) if path != file else {"": pick_episode(stored.episodes, episode, path)}
    records = {name: encode(each) for name, each in chosen.items()}
    if not print_json(records.get("", records), json_file):
        return
    try:
        view = environment_of(stored.environment, environment).presentation.view
    except GradusError:  # its data may not be on this machine; the transcript still is
        if environment is not None:
            raise
        view = None
    console = Console()
    for name, each in chosen.items():
        if name:
            console.rule(f"{name} of {path.name}", align="left")
        console.print(show_episode(each, view(each) if view else None))
    if path == file and 0 <= episode < len(stored.episodes) - 1:
        next_command("show", file, "--episode", episode + 1)


def environment_of(stored: str, given: str | None) -> EnvironmentSpec:
    """The environment that was named on the command line, or the registered one that the file names.

    A file's header never makes code run: ``module:attribute`` is imported only if the command line says so.
    """
    from gradus import environments
    from gradus.core import ConfigError

    if given is not None:
        return environments.load(given)
    try:
        return environments.load_registered(stored)
    except ConfigError as error:
        raise ConfigError(f"{error}; if the episodes are of your own environment, say which with --env") from error
