"""The command that understands ``--json [FILE]``."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import Any

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
        if "--json" in args and any(parameter.name == "json_file" for parameter in self.params):
            after = args.index("--json") + 1
            if not (after < len(args) and (args[after].endswith(".json") or args[after] == "-")):
                args = [*args[:after], "-", *args[after:]]
        return super().parse_args(ctx, args)

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
