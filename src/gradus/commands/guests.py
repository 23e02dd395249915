"""Tools for the commands of a guest: an option, output, a policy by its name, and a frozen model that answers questions.

A package adds commands with an entry point of the group ``gradus.commands``. Its value is a cyclopts ``App``; the entry point and the
app have the name of the command. The package is imported when its command is called, and not before.

    # pyproject.toml: [project.entry-points."gradus.commands"] garden = "my_package.commands:app"
    from cyclopts import App
    from gradus.commands.guests import next_command, print_json

    app = App(name="garden", help="Look after a garden.")

    @app.command
    def water(bed: str) -> None:
        "Water one bed."
        if print_json({"bed": bed}):
            print(f"watered {bed}")
        next_command("garden", "water", "another bed")
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from gradus.commands.options import Temperature
from gradus.commands.output import next_command, note, print_json, problem
from gradus.core import EnvironmentSpec, Policy
from gradus.core.printing import printable

if TYPE_CHECKING:
    from gradus.runs.frozen_model import FrozenModel

__all__ = [
    "Temperature",
    "frozen_model",
    "make_policy",
    "next_command",
    "note",
    "print_json",
    "printable",
]

GROUP = "gradus.commands"


def make_policy(spec: EnvironmentSpec, name: str | Path, **sampling: Any) -> Policy:
    """Makes a policy from its name: one of the environment's own, ``remote:MODEL``, a model folder, a run folder or a hub name."""
    from gradus.runs.policies import make_policy as make

    return make(spec, os.fspath(name), **sampling)


def frozen_model(name: str, *, system_prompt: str) -> FrozenModel:
    """Returns a frozen language model that is asked single questions, such as a reader or a user's model.

    ``name``: a model folder, a GGUF file, ``remote:MODEL``, or a TOML file that also sets cache, price, budget and the share that is asked twice.
    """
    from gradus.runs.frozen_model import frozen_model as model

    return model(name, system_prompt)


def attach_guests(app: App, panel: Any) -> None:
    """Adds the commands of installed packages by name; the one that takes a name that exists is said and left out."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in app:
            problem(f"{entry.value} is left out: the command gradus {entry.name} exists already", "yellow")
            continue
        package = entry.dist.name if entry.dist is not None else entry.value
        about = f"Commands of {entry.name}, from the package {package}."
        # As a text: cyclopts imports the package when its command is called.
        app.command(entry.value, name=entry.name, group=panel, help=about)
