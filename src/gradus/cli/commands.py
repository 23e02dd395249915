"""Which command lives in which file. The files import nothing heavy before they run."""

from __future__ import annotations

import importlib

import typer

from gradus.commands.guests import attach_guests
from gradus.commands.options import Command

_GROUPS = {
    "Start here": {"run": "run", "init": "init", "envs": "envs", "play": "play", "docs": "docs"},
    "The five steps": {
        "audit": "audit",
        "teach": "teach",
        "sft": "sft",
        "grpo": "grpo",
        "doctor": "doctor",
        "eval": "evaluate",
        "report": "report",
        "compare": "compare",
        "watch": "watch",
    },
    "Around them": {
        "show": "show",
        "regrade": "regrade",
        "plan": "plan",
        "check": "check",
        "export": "export",
        "chat": "chat",
        "serve": "serve",
        "serve-env": "serve_env",
        "package-env": "package_env",
        "push": "push",
    },
}
_APPS = {"rewards": "rewards", "memory": "memory"}


def attach(app: typer.Typer) -> None:
    """Register every command whose file is there, once: a second time each would be built twice at every call."""
    if app.registered_commands:
        return
    for panel, commands in _GROUPS.items():
        for name, module in commands.items():
            loaded = importlib.import_module(f"gradus.cli.{module}")
            app.command(name, cls=Command, rich_help_panel=panel)(loaded.command)
    for name, module in _APPS.items():
        loaded = importlib.import_module(f"gradus.cli.{module}")
        app.add_typer(loaded.app, name=name, rich_help_panel="Around them")
    attach_guests(app, "Around them")
