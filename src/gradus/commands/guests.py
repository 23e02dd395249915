"""Tools for the commands of a guest: options, output, and a policy by its name.

A package adds commands with an entry point of the group ``gradus.commands``. Its value is a Typer app; the entry point's name is the
command's. The app's module is imported whenever ``gradus`` starts, so it must import nothing heavy at its top.

    # pyproject.toml: [project.entry-points."gradus.commands"] garden = "my_package.commands:app"
    import typer
    from gradus.commands.guests import Command, Json, next_command, print_json

    app = typer.Typer(help="Look after a garden.", no_args_is_help=True)

    @app.command(cls=Command)
    def water(bed: str, json_file: Json = None) -> None:
        "Water one bed."
        if print_json({"bed": bed}, json_file):
            typer.echo(f"watered {bed}")
        next_command("garden", "water", "another bed")
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from gradus.commands.options import Command, Json, MaxNewTokens, Seed, Temperature
from gradus.commands.output import json_text, next_command, note, print_json, problem, same
from gradus.core import EnvironmentSpec, Policy
from gradus.core.printing import printable

__all__ = [
    "Command",
    "Json",
    "MaxNewTokens",
    "Seed",
    "Temperature",
    "json_text",
    "make_policy",
    "next_command",
    "note",
    "print_json",
    "printable",
    "problem",
    "progress_bar",
    "same",
]

GROUP = "gradus.commands"


def make_policy(spec: EnvironmentSpec, name: str | Path, **sampling: Any) -> Policy:
    """Makes a policy from its name: one of the environment's own, ``remote:MODEL``, a model folder, a run folder or a hub name."""
    from gradus.runs.policies import make_policy as make

    return make(spec, os.fspath(name), **sampling)


def progress_bar(title: str, total: int, unit: str) -> AbstractContextManager[Callable[..., None]]:
    """Shows progress on standard error; the function that it gives takes (done, total)."""
    from gradus.runs.progress import progress_bar as bar

    return bar(title, total, unit)


def attach_guests(app: typer.Typer, panel: str) -> None:
    """Adds the commands of installed packages. A package that cannot be imported, or takes a name that exists, is named and left out."""
    taken = {each.name for each in (*app.registered_commands, *app.registered_groups)}
    for each in sorted(entry_points(group=GROUP), key=lambda found: found.name):
        if each.name in taken:
            problem(f"{each.value} is left out: the command gradus {each.name} exists already", "yellow")
            continue
        try:
            app.add_typer(each.load(), name=each.name, rich_help_panel=panel)
        except Exception as error:
            problem(f"gradus {each.name} of {each.value} cannot be loaded: {type(error).__name__}: {error}", "yellow")
