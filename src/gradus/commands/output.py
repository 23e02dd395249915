"""Output of commands: the result as tables or JSON, notes on standard error, then the next sensible command."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from gradus.core.printing import printable, quiet

_FRAME = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.3\">{code}</pre>"

# True if the command prints JSON, and no hint after it.
FOR_MACHINES: ContextVar[bool] = ContextVar("FOR_MACHINES", default=False)
# Parameter -> the words of the option that was typed.
GIVEN: ContextVar[Mapping[str, list[str]] | None] = ContextVar("GIVEN", default=None)


class Shown(ABC):
    """A result that prints well: as text in a terminal, as HTML in a notebook, from the same tables."""

    @abstractmethod
    def tables(self) -> Sequence[Any]:
        """The rich renderables, one under another."""

    @abstractmethod
    def to_json(self) -> Any:
        """The result as ``--json`` prints it."""

    def show(self) -> None:
        """Print it with colors, as the command line does."""
        from gradus.core.terminal import Terminal

        self._print(Terminal())

    def __repr__(self) -> str:
        return self._recorded().export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._recorded().export_html(inline_styles=True, code_format=_FRAME)

    def _recorded(self) -> Any:
        from gradus.core.terminal import Terminal

        console = Terminal(file=io.StringIO(), record=True, width=120, force_jupyter=False)
        self._print(console)
        return console

    def _print(self, console: Any) -> None:
        for each in self.tables():
            console.print(each, highlight=False)


class Listing(Shown, list[dict[str, str]]):
    """Rows of texts with the same keys, which are the titles of the table's columns."""

    def to_json(self) -> list[dict[str, str]]:
        """The list itself."""
        return self

    def tables(self) -> Sequence[Any]:
        """One table."""
        from rich.table import Table
        from rich.text import Text

        table = Table(*self[0], box=None, pad_edge=False)
        for row in self:
            table.add_row(*map(Text, row.values()))
        return [table]


def show(result: Shown, json_file: str | None) -> None:
    """Prints tables, or JSON on standard output; with a file, tables on standard output and JSON in the file."""
    if print_json(result.to_json() if json_file else None, json_file):
        result.show()


def print_json(value: Any, json_file: str | None) -> bool:
    """Prints or writes JSON if it was asked for; returns False if it was printed, so that nothing else is."""
    if json_file == "-":
        typer.echo(json_text(value, indent=1))
        return False
    if json_file is not None:
        from gradus.core.files import write_json

        write_json(Path(json_file), value)
        note(f"written: {json_file}")
    return True


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON for standard output; characters that only UTF-8 can write are escapes elsewhere."""
    return json.dumps(value, indent=indent, ensure_ascii=getattr(sys.stdout, "encoding", "utf-8").lower() != "utf-8")


def note(text: str) -> None:
    """A line on standard error, so that standard output holds results alone."""
    typer.echo(printable(text), err=True)


def problem(text: str, color: str = "red") -> None:
    """A line on standard error that stands out; without color if NO_COLOR is set."""
    typer.secho(printable(text), fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def same(*names: str) -> list[str]:
    """Returns the options that were typed, by the names of their parameters, for a command that does the same."""
    typed = GIVEN.get() or {}
    return [word for name in names for word in typed.get(name, ())]


def next_command(*words: object, why: str = "") -> None:
    """The next sensible command, quoted for a shell, and on a line below what it is for; nothing after JSON or with --quiet.

    It is not a comment on the same line: zsh takes ``#`` for a word unless it is told not to.
    """
    if not FOR_MACHINES.get() and not quiet():
        note(f"next: gradus {shlex.join(str(word) for word in words)}")
        if why:
            note(f"      ({why})")
