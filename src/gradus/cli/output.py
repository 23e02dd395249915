"""How commands speak: the result as tables or JSON, then the next sensible command."""

from __future__ import annotations

import json
import shlex
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import typer

FOR_MACHINES: ContextVar[bool] = ContextVar(
    "FOR_MACHINES", default=False
)  # the command prints JSON, and no hint after it


class _Result(Protocol):
    def show(self) -> None: ...
    def to_json(self) -> dict[str, Any]: ...


def show(result: _Result, json_file: str | None) -> None:
    """Tables, or JSON on standard output, or both with the JSON in a file."""
    if json_file == "-":
        typer.echo(json.dumps(result.to_json(), indent=1, ensure_ascii=False))
        return
    result.show()
    if json_file is not None:
        from gradus.core.files import write_json

        write_json(Path(json_file), result.to_json())
        note(f"written: {json_file}")


def print_json(value: Any, json_file: str | None) -> bool:
    """Print or write JSON if it was asked for; whether tables are to be shown as well."""
    if json_file == "-":
        typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
        return False
    if json_file is not None:
        from gradus.core.files import write_json

        write_json(Path(json_file), value)
        note(f"written: {json_file}")
    return True


def note(text: str) -> None:
    """A line on standard error, so that standard output holds results alone."""
    typer.echo(text, err=True)


def next_command(*words: object) -> None:
    """The next sensible command, quoted for a shell; nothing after JSON."""
    if not FOR_MACHINES.get():
        note(f"next: gradus {shlex.join(str(word) for word in words)}")
