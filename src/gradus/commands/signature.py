"""From a typed function to a command: its docstring is the help, its signature gives the arguments and options.

A parameter stands on the command line if its annotation holds a ``typer.Option`` or ``typer.Argument``; a :class:`Line` beside it
says what differs there. ``**options: Unpack[SomeTypedDict]`` brings the options of the TypedDict. A second function, ``tell``, says
what follows at the command line: it takes the result, any values of the command line by their names, and further options.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from gradus.commands.options import Command, Json, Line
from gradus.commands.output import Shown, show

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Tell = Callable[..., int | None]
_GROUPS = {"rewards": "Try reward functions without training."}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One parameter as the command line has it. ``python``: its type in Python; ``grouped``: it is one of a TypedDict."""

    name: str
    python: Any
    info: ParameterInfo
    line: Line
    default: Any
    grouped: bool
    several: bool

    def parameter(self) -> Parameter:
        """The parameter as typer reads it."""
        kind = self.line.kind or self.python
        default = self.default if self.line.default is None else self.line.default
        if get_origin(kind) is list and default is not Parameter.empty:
            default = list(default or ())
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, self.info])

    def value(self, given: Any) -> Any:
        """The argument of the call for what was typed."""
        if self.line.item is None or given is None:
            return given
        texts = [given] if isinstance(given, str) else given
        parts = dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip())
        try:
            return [self.line.item(part) for part in parts]
        except ValueError:
            name = self.name.replace("_", "-")
            raise typer.BadParameter(f"--{name} takes whole numbers, as in 1,8; got {','.join(texts)!r}") from None


@dataclass(frozen=True, kw_only=True)
class CommandEntry:
    """A command: its function, what is said after it, whether its result is shown, and its options."""

    function: Callable[..., Any]
    tell: _Tell | None
    shown: bool
    options: tuple[Option, ...]
    own: frozenset[str]  # names of the options that the function takes

    def run(self, typed: dict[str, Any]) -> None:
        """Calls the function with what was typed, shows the result, and says what follows."""
        json_file = typed.get("json_file")
        values = {each.name: each.value(typed[each.name]) for each in self.options}
        self._check_places(values, json_file)
        several: list[Any] = []
        arguments: dict[str, Any] = {}
        for each in self.options:
            if each.several:
                several = values[each.name]
            elif each.name in self.own and not (each.grouped and values[each.name] in (each.default, None)):
                arguments[each.name] = values[each.name]
        result = self.function(*several, **arguments)
        if self.shown and isinstance(result, Shown):
            show(result, json_file)
        if self.tell is not None:
            values["json_file"] = json_file
            wanted = inspect.signature(self.tell).parameters
            if code := self.tell(result, **{key: value for key, value in values.items() if key in wanted}):
                raise typer.Exit(code)

    def _check_places(self, values: Mapping[str, Any], json_file: str | None) -> None:
        """Refuses files that cannot be written before anything is done for them; those that the function writes itself it checks."""
        from gradus.core.files import check_file_can_be_written

        later = [each for each in self.options if each.name in ("out", "report") and each.name not in self.own]
        files = [(values[each.name], "file" if each.line.folder else "") for each in later]
        if json_file == "-":
            json_file = None
        elif json_file is not None and Path(json_file).is_file() and not _is_ours(Path(json_file)):
            raise typer.BadParameter(
                f"{json_file} exists and was not written by --json, so it is not replaced; name another file",
                param_hint="--json",
            )
        for place, inside in [*files, (json_file, "")]:
            if place is not None:
                check_file_can_be_written(Path(place) / inside)


def _is_ours(path: Path) -> bool:
    """Says if a file is a document with a schema. Rows behind a bare ``--json`` are not; they would be lost."""
    try:
        return "schema" in json.loads(path.read_bytes())
    except (ValueError, TypeError, RecursionError):
        return False


COMMANDS: dict[str, CommandEntry] = {}


def command(name: str, tell: _Tell | None = None, *, shown: bool = False) -> Callable[[_Function], _Function]:
    """Makes a function a command. ``tell`` returns the exit code, or None for 0.

    With ``shown`` the result is printed as tables, or as JSON with ``--json``. The help of each option becomes a line of the function's
    docstring, so that ``help(function)`` says it too.
    """

    def register(function: _Function) -> _Function:
        options = list(_options(function))
        own = frozenset(each.name for each in options)
        further = [] if tell is None else [each for each in _options(tell, skip=1) if each.name not in own]
        COMMANDS[name] = CommandEntry(function=function, tell=tell, shown=shown, options=(*options, *further), own=own)
        lines = [f"    {each.name}: {each.info.help}" for each in options if each.info.help]
        if lines:
            function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
        function.__annotations__.update({each.name: each.python for each in options if not each.grouped})
        return function

    return register


def attach(app: typer.Typer, name: str, panel: str) -> None:
    """Adds a command to the command line; ``rewards try`` goes into the group ``rewards``."""
    group, _, word = name.rpartition(" ")
    found = next((each.typer_instance for each in app.registered_groups if group and each.name == group), None)
    if group and found is None:
        found = typer.Typer(help=_GROUPS[group], no_args_is_help=True)
        app.add_typer(found, name=group, rich_help_panel=panel)
    entry = COMMANDS[name]

    def run(**typed: Any) -> None:
        COMMANDS[name].run(typed)

    parameters = [each.parameter() for each in entry.options]
    if entry.shown:
        parameters.append(Parameter("json_file", Parameter.KEYWORD_ONLY, default=None, annotation=Json))
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__doc__ = (entry.function.__doc__ or "").split("\n\n")[0]
    (found or app).command(word, cls=Command, rich_help_panel=None if group else panel)(run)


def _options(function: Callable[..., Any], *, skip: int = 0) -> Iterator[Option]:
    """The parameters of a function that stand on the command line, without the first ``skip``."""
    for name, each in islice(inspect.signature(function).parameters.items(), skip, None):
        annotation = eval(each.annotation, function.__globals__)
        if each.kind is Parameter.VAR_KEYWORD and get_args(annotation):
            for key, hint in get_type_hints(get_args(annotation)[0], include_extras=True).items():
                yield from _option(key, hint, grouped=True)
        else:
            several = each.kind is Parameter.VAR_POSITIONAL
            yield from _option(name, annotation, default=each.default, several=several)


def _option(
    name: str, annotation: Any, *, default: Any = None, grouped: bool = False, several: bool = False
) -> Iterator[Option]:
    if get_origin(annotation) is not Annotated:
        return
    python, *further = get_args(annotation)
    info = next((each for each in further if isinstance(each, ParameterInfo)), None)
    if info is None:
        return
    line = next((each for each in further if isinstance(each, Line)), Line())
    if grouped and default is None:
        kind = line.kind or python
        if kind is bool:
            default = False
        elif get_origin(kind) is list:
            default = []
    yield Option(name=name, python=python, info=info, line=line, default=default, grouped=grouped, several=several)
