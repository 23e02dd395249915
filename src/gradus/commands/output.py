"""How commands speak: the result as tables or JSON, then the next sensible command."""

from __future__ import annotations

import codecs
import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import typer

from gradus.core.printing import printable, quiet

FOR_MACHINES: ContextVar[bool] = ContextVar(
    "FOR_MACHINES", default=False
)  # the command prints JSON, and no hint after it
GIVEN: ContextVar[Mapping[str, list[str]] | None] = ContextVar(
    "GIVEN", default=None
)  # parameter -> the words of the option that was typed


class _Result(Protocol):
    def show(self) -> None: ...
    def to_json(self) -> dict[str, Any]: ...


def show(result: _Result, json_file: str | None) -> None:
    """Tables, or JSON on standard output, or both with the JSON in a file."""
    if json_file == "-":
        typer.echo(json_text(result.to_json(), indent=1))
        return
    result.show()
    if json_file is not None:
        from gradus.core.files import write_json

        write_json(Path(json_file), result.to_json())
        note(f"written: {json_file}")


def print_json(value: Any, json_file: str | None) -> bool:
    """Print or write JSON if it was asked for; whether tables are to be shown as well."""
    if json_file == "-":
        typer.echo(json_text(value, indent=1))
        return False
    if json_file is not None:
        from gradus.core.files import write_json

        write_json(Path(json_file), value)
        note(f"written: {json_file}")
    return True


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON for standard output. Characters are written as escapes if the output may not have them."""
    encoding = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf-8")


def note(text: str) -> None:
    """A line on standard error, so that standard output holds results alone."""
    typer.echo(printable(text), err=True)


def problem(text: str, color: str = "red") -> None:
    """A line on standard error that stands out; without color if NO_COLOR says so."""
    typer.secho(printable(text), fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def same(*names: str) -> list[str]:
    """The options of the command that were typed, by the names of their parameters, for a command that does the same."""
    typed = GIVEN.get() or {}
    return [word for name in names for word in typed.get(name, ())]


def refuse(*names: str, why: str) -> None:
    """Refuse options that were typed and have no effect, by the names of their parameters."""
    typed = GIVEN.get() or {}
    if others := [typed[name][0] for name in names if typed.get(name)]:
        raise typer.BadParameter(f"no effect {why}: {', '.join(others)}; leave it out")


def next_command(*words: object, why: str = "") -> None:
    """The next sensible command, quoted for a shell, and on a line below what it is for; nothing after JSON or with --quiet.

    It is no comment on the same line: zsh takes ``#`` for a word unless it is told not to.
    """
    if not FOR_MACHINES.get() and not quiet():
        note(f"next: gradus {shlex.join(str(word) for word in words)}")
        if why:
            note(f"      ({why})")
