"""The command that understands ``--json [FILE]``."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import typer
from typer.core import TyperCommand

from gradus.commands.output import FOR_MACHINES, GIVEN

_WIDTH_OF_TABLES = 80  # columns; in fewer a table of options cuts their names, and plain help does not


class Command(TyperCommand):
    """``--json`` takes a file or none: the next word is the file if it ends in .json; ``--json=FILE`` takes any name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if get_terminal_size().columns < _WIDTH_OF_TABLES:
            self.rich_markup_mode = None
        for each in self.params:  # typer's own, as in <list[str]>, take so much room that 80 columns cut the names
            if each.param_type_name == "option" and getattr(each, "metavar", None) is None:
                vars(each)["metavar"] = _metavar(each)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if all(parameter.name != "json_file" for parameter in self.params):
            return super().parse_args(ctx, args)
        if "--json" in args:
            after = args.index("--json") + 1
            if not (after < len(args) and (args[after].endswith(".json") or args[after] == "-")):
                args = [*args[:after], "-", *args[after:]]
        rest = super().parse_args(ctx, args)
        if (file := ctx.params["json_file"]) not in (None, "-"):
            _refuse_other_than_json(file, self._subjects(ctx))
        return rest

    def _subjects(self, ctx: Any) -> list[str]:
        """Returns the arguments of the command as words."""
        given = (ctx.params[str(each.name)] for each in self.params if each.param_type_name == "argument")
        return [str(word) for each in given for word in (each if isinstance(each, list | tuple) else [each])]

    def invoke(self, ctx: Any) -> Any:
        FOR_MACHINES.set(ctx.params.get("json_file") == "-")
        GIVEN.set(
            {each.name: _typed(ctx, each) for each in self.params if each.param_type_name == "option" and each.name}
        )
        return super().invoke(ctx)


def _metavar(option: Any) -> str:
    if getattr(option, "is_flag", False):
        return ""
    kinds = str(option.type_descriptor.annotation)
    return "N" if "int" in kinds or "float" in kinds else "PATH" if "Path" in kinds else "TEXT"


def _refuse_other_than_json(file: str, subjects: list[str]) -> None:
    """A file that a person wrote is not what --json is meant to replace, nor what the command is about, JSON or not."""
    path = Path(file)
    if path.is_file() and path.resolve() in (Path(word).resolve() for word in subjects):
        raise typer.BadParameter(f"{file} is what the command reads; name another file", param_hint="--json")
    try:
        if path.is_file() and path.stat().st_size:
            json.loads(path.read_bytes())
    except ValueError:
        raise typer.BadParameter(
            f"{file} exists and is no JSON document, so it is not overwritten; name another file", param_hint="--json"
        ) from None


def _typed(ctx: Any, option: Any) -> list[str]:
    """The words of an option, if it was typed."""
    source = ctx.get_parameter_source(option.name)
    if source is None or source.name != "COMMANDLINE":
        return []
    value = ctx.params[option.name]
    if option.is_flag:
        return [(option.opts if value else option.secondary_opts)[0]]
    several = value if option.multiple else [value]
    return [word for each in several for word in (option.opts[0], str(each))]
