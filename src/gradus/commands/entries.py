"""The commands by name: a function, and what is said after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gradus.commands.output import CommandCall, Shown, show
from gradus.core.frozen_record import frozen_record

_Function = TypeVar("_Function", bound=Callable[..., Any])
After = Callable[[Any, CommandCall], int | None]


@frozen_record
class CommandEntry:
    """A command: its function, what is said after it, and whether its result is shown as tables or JSON.

    ``after`` takes the result and the call, and returns the exit code, or None for 0.
    """

    function: Callable[..., Any]
    after: After | None
    shown: bool

    @property
    def help(self) -> str:
        """The first paragraph of the docstring; what follows it is for Python. Its first sentence stands in the list of commands."""
        paragraph = " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())
        first, dot, rest = paragraph.partition(". ")
        return f"{first}.\n\n{rest}" if dot else paragraph

    def run(self, bound: inspect.BoundArguments, flags: Mapping[str, str]) -> int:
        """Calls the function with what was typed, shows the result, and says what follows. Returns the exit code."""
        result = self.function(*bound.args, **bound.kwargs)
        if self.shown and isinstance(result, Shown):
            show(result)
        bound.apply_defaults()
        values = {**bound.arguments, **bound.arguments.get("options", {})}
        code = self.after(result, CommandCall(values=values, flags=flags)) if self.after is not None else None
        return code or 0


COMMANDS: dict[str, CommandEntry] = {}


def command(name: str, after: After | None = None, *, shown: bool = False) -> Callable[[_Function], _Function]:
    """Makes a function a command, called ``name`` in the line; ``rewards try`` is ``try`` in the group ``rewards``."""

    def register(function: _Function) -> _Function:
        COMMANDS[name] = CommandEntry(function=function, after=after, shown=shown)
        return function

    return register
