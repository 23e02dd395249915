"""Options that mean the same in every command, and the command that understands ``--json [FILE]``."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from gradus.commands.output import FOR_MACHINES, GIVEN

ENVIRONMENT = typer.Argument(
    ...,
    help="Environment, as in `gradus envs`; your rows.jsonl or rows.csv; your own FILE.py, FILE.py:NAME or module:attribute.",
)
JSON = typer.Option(
    None,
    "--json",
    metavar="[FILE]",
    help="Print JSON instead of tables; with FILE, write it there and show the tables.",
)
MODEL = typer.Option(None, "--model", "-m", help="Model folder, run folder or hub name; a nano model otherwise.")
RECIPE = typer.Option(
    None, "--recipe", "-r", help="A TOML recipe, or one that comes with Gradus; else the environment's."
)
CHANGES = typer.Option(
    [], "--set", "-s", metavar="KEY=VALUE", help="Change a setting: grpo.max_steps=20; KEY= unsets it (repeatable)."
)
REWARDS = typer.Option(
    [],
    "--reward",
    metavar="NAME=WEIGHT",
    help="A reward function as (part of) the grader: a built-in, FILE.py:FN or module:FN (repeatable).",
)
GRADER = typer.Option(None, "--grader", "-g", help="A grader of the environment; its default one otherwise.")
QUICK = typer.Option(False, "--quick", help="Every stage at toy size, for a first look.")
TRACKER = typer.Option(
    [], "--tracker", help="Also send metrics to tensorboard or wandb (repeatable); metrics.jsonl is always written."
)
TEMPERATURE = typer.Option(
    None, "--temperature", min=0.0, help="Of models; 0 is greedy. Without it: as the model was trained."
)
MAX_NEW_TOKENS = typer.Option(
    None, "--max-new-tokens", min=1, help="Longest answer of models. Without it: as the model was trained."
)
KEEP_HISTORY = typer.Option(
    None,
    "--keep-history/--rewrite-history",
    help="Keep earlier answers as sampled, also if the chat template would rewrite them. Without it: as trained.",
)
PRESET = typer.Option(
    None,
    "--preset",
    help="Settings that suit a machine: cpu, small-gpu (24 GB) or large-gpu (80 GB); --set overrides them.",
)

MEMORY = typer.Option(
    None, "--memory", help="Fit the settings to a card of this size, as in 24GB, and print what was set."
)


# An argument that may be left out -> what it may be left out for.
_ABOUT = {"environment": ("environment", "recipe"), "file": ("file", "completion")}


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


_WIDTH_OF_TABLES = 80  # columns; in fewer a table of options cuts their names, and plain help does not


class Command(TyperCommand):
    """``--json`` takes a file or none: a word after it is the file, unless the command then lacks an argument.

    An option that takes one value is refused if it is given twice: the first would be dropped in silence.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if get_terminal_size().columns < _WIDTH_OF_TABLES:
            self.rich_markup_mode = None
        for each in self.params:  # typer's own, as in <list[str]>, take so much room that 80 columns cut the names
            if each.param_type_name == "option" and getattr(each, "metavar", None) is None:
                vars(each)["metavar"] = _metavar(each)

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            options, rest, order = parse(args)
            for parameter in order:
                several = parameter.multiple or getattr(parameter, "is_flag", False)
                if parameter.param_type_name == "option" and not several and order.count(parameter) > 1:
                    raise typer.BadParameter(f"{parameter.opts[0]} is given more than once, and takes one value")
            return options, rest, order

        parser.parse_args = parse_once
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if all(parameter.name != "json_file" for parameter in self.params):
            return super().parse_args(ctx, args)
        rest = self._parsed(ctx, args)
        if (file := ctx.params["json_file"]) not in (None, "-"):
            _refuse_other_than_json(file, self._subjects(ctx))
        return rest

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        if "--json" not in args:
            return super().parse_args(ctx, args)
        after = args.index("--json") + 1
        bare = [*args[:after], "-", *args[after:]]
        if after == len(args) or (args[after].startswith("-") and args[after] != "-"):
            return super().parse_args(ctx, bare)
        try:
            rest = super().parse_args(ctx, list(args))
            left_out = (_ABOUT[name] for name in self._arguments() if name in _ABOUT)
            if any(not any(map(ctx.params.get, others)) for others in left_out):
                raise TyperException("the word after --json is what the command is about")
        except TyperException:
            ctx.params.clear()
            return super().parse_args(ctx, bare)
        return rest

    def _arguments(self) -> list[str]:
        return [str(each.name) for each in self.params if each.param_type_name == "argument"]

    def _subjects(self, ctx: Any) -> list[str]:
        """The words that say what the command is about."""
        given = (ctx.params[name] for name in self._arguments())
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
