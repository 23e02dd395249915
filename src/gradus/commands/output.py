"""Output of commands: the result as tables or JSON, notes on standard error, then the next sensible command."""

from __future__ import annotations

import io
import json
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from gradus.core.frozen_record import frozen_record
from gradus.core.printing import printable, quiet
from gradus.core.values import Json

_FRAME = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.3\">{code}</pre>"

# Where --json puts the result: "-" is standard output; None if it was not typed.
JSON_FILE: ContextVar[str | None] = ContextVar("JSON_FILE", default=None)


@frozen_record
class CommandCall:
    """One call of a command, as it was typed. ``values``: every parameter; ``flags``: the option of each parameter that was typed."""

    values: Json
    flags: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def same(self, *names: str) -> list[str]:
        """Returns the options that were typed, by the names of their parameters, for a command that does the same."""
        words: list[str] = []
        for name in names:
            if name in self.flags:
                words += _option(self.flags[name], self.values[name])
        return words


def _option(flag: str, value: Any) -> list[str]:
    """The words of one option: a switch alone, a list once for each item."""
    if value is True:
        return [flag]
    items = cast(list[Any], value) if isinstance(value, list) else [value]
    return [word for item in items for word in (flag, str(item))]


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
        for renderable in self.tables():
            console.print(renderable, highlight=False)


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


def show(result: Shown) -> None:
    """Prints tables, or JSON on standard output; with a file, tables on standard output and JSON in the file."""
    if print_json(result.to_json() if JSON_FILE.get() else None):
        result.show()


def print_json(value: Any) -> bool:
    """Prints or writes JSON if it was asked for; returns False if it was printed, so that nothing else is."""
    place = JSON_FILE.get()
    if place == "-":
        print(_json_text(value))
        return False
    if place is not None:
        from gradus.core.files import write_json

        write_json(Path(place), value)
        note(f"written: {place}")
    return True


def _json_text(value: Any) -> str:
    """``value`` as JSON for standard output; characters that only UTF-8 can write are escapes elsewhere."""
    return json.dumps(value, indent=1, ensure_ascii=getattr(sys.stdout, "encoding", "utf-8").lower() != "utf-8")


def note(text: str) -> None:
    """A line on standard error, so that standard output holds results alone."""
    print(printable(text), file=sys.stderr)


def serve_page(app: Any, port: int, what: str) -> None:
    """Serves a page on this machine until Ctrl-C. ``what`` stands before its address."""
    from gradus.interop.servers import listen, serve_until_stopped, server_config, url

    with listen("127.0.0.1", port) as listener:
        note(f"{what} at {url(listener, '127.0.0.1')}; Ctrl-C stops")
        serve_until_stopped(server_config(app), listener)


def problem(text: str, color: str = "red") -> None:
    """A line on standard error that stands out; without color if NO_COLOR is set."""
    from rich.text import Text

    from gradus.core.terminal import Terminal

    Terminal(stderr=True, highlight=False, soft_wrap=True).print(Text(text, style=color))


def next_command(*words: object, why: str = "") -> None:
    """The next sensible command, quoted for a shell, and on a line below what it is for; nothing after JSON or with --quiet.

    It is not a comment on the same line: zsh takes ``#`` for a word unless it is told not to.
    """
    if JSON_FILE.get() != "-" and not quiet():
        note(f"next: gradus {shlex.join(str(word) for word in words)}")
        if why:
            note(f"      ({why})")
