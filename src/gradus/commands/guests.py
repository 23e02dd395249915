"""Tools for the commands of a guest: an option, output, a policy by its name, and its answers to single questions.

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
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from cyclopts import App

from gradus.commands.options import Temperature
from gradus.commands.output import next_command, note, print_json, problem
from gradus.core import Action, Environment, EnvironmentSpec, EpisodeStart, Observation, Policy, Request, Task
from gradus.core.printing import printable

__all__ = [
    "Temperature",
    "ask_policy",
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


def ask_policy(
    policy: Policy, prompts: Sequence[str], *, system_prompt: str, keys: Sequence[tuple[int | str, ...]]
) -> Sequence[Action]:
    """Asks a policy single questions, all at once; returns an answer each, or its failure. ``keys``: seed keys of what it may draw.

    Raises PolicyError if it cannot be reached.
    """
    no_environment = cast(Environment, None)  # only privileged policies look at it
    task = Task(environment="questions", seed=0)
    starts: list[EpisodeStart] = []
    for number, key in enumerate(keys):
        start = EpisodeStart(
            task=task, system_prompt=system_prompt, key=key, group=number, member=0, environment=no_environment
        )
        starts.append(start)
    with closing(policy.start(starts)) as session:
        requests = [Request(row=row, observation=Observation(text=text)) for row, text in enumerate(prompts)]
        return session.act(requests)


def attach_guests(app: App, panel: Any) -> None:
    """Adds the commands of installed packages by name; the one that takes a name that exists is said and left out."""
    for each in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if each.name in app:
            problem(f"{each.value} is left out: the command gradus {each.name} exists already", "yellow")
            continue
        package = each.dist.name if each.dist is not None else each.value
        app.command(
            each.value, name=each.name, group=panel, help=f"Commands of {each.name}, from the package {package}."
        )
