"""Asks a person in the terminal: for the answers of a policy, and for marks of answers that no rule settles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from gradus.core import Action, ConfigError, EpisodeStart, Request
from gradus.core.documents import SCHEMA
from gradus.core.files import read_json, write_json
from gradus.core.terminal import Terminal

_MARKS = {"r": "right", "w": "wrong", "s": None}


class PersonPolicy:
    """Shows each observation and reads the answer from the keyboard."""

    name = "you"

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, episodes: Sequence[EpisodeStart]) -> PersonPolicy:
        """Show the rules."""
        for episode in episodes:
            self.console.rule("the rules")
            self.console.print(episode.system_prompt)
            self.console.print("Ctrl-C ends it.", style="dim")
            self.console.rule()
        return self

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Ask once per episode."""
        return [Action(text=self._ask(request)) for request in requests]

    def _ask(self, request: Request) -> str:
        seen = request.observation
        if seen.action_error:
            self.console.print(f"not understood: {seen.action_error}", style="yellow")
        self.console.print(seen.text, style="bold")
        while True:
            try:
                answer = self.console.input("> ").strip()
            except EOFError as error:
                raise KeyboardInterrupt from error
            if answer:
                return answer

    def close(self) -> None:
        """Nothing is held."""


def read_marks(path: Path) -> dict[str, str]:
    """The marks in a file, key -> right or wrong; empty without one."""
    if not path.is_file():
        return {}
    stored = read_json(path)
    marks = stored.get("marks") if isinstance(stored, dict) else None
    if not isinstance(marks, dict) or not all(mark in ("right", "wrong") for mark in marks.values()):
        raise ConfigError(f"{path} holds no marks; expected {{'marks': {{KEY: 'right' or 'wrong'}}}}")
    return marks


def ask_person(review: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Show every answer without a mark and ask; what was said is written after each, and the next audit counts it.

    Returns how many were marked. Ctrl-D, or the end of the input, ends the asking.
    """
    console, marks = Terminal(), read_marks(path)
    before = len(marks)
    for row in review:
        if row["key"] in marks:
            continue
        console.rule(row["operator"])
        for name in ("prompt", "gold", "answer", "reward"):
            console.print(f"{name}: {row[name]}", highlight=False)
        try:
            mark = _asked()
        except typer.Abort:
            break
        if mark is not None:
            marks[row["key"]] = mark
            write_json(path, {"schema": SCHEMA, "marks": marks})
    return len(marks) - before


def _asked() -> str | None:
    while True:
        said = typer.prompt("Is the answer right (r), wrong (w), or skip (s)?").strip().lower()[:1]
        if said in _MARKS:
            return _MARKS[said]
        typer.echo(f"expected one of {', '.join(_MARKS)}, got {said!r}")
