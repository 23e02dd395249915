"""Options that mean the same in every command, each declared once with its help, and checks of what a call was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from typer.core import TyperCommand

from gradus.commands.output import FOR_MACHINES, GIVEN
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.naming import did_you_mean


class Command(TyperCommand):
    """``--json`` takes a file or none: the next word is the file if it ends in .json; ``--json=FILE`` takes any name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rich_markup_mode = None  # a table of options cuts their names at 80 columns, plain help does not

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


@dataclass(frozen=True, kw_only=True)
class Line:
    """The differences of a parameter on the command line: its type, its default, the kind of items between commas, and whether it names a folder."""

    kind: Any = None
    default: Any = None
    item: Callable[[str], Any] | None = None
    folder: bool = False


Rows = Sequence[Mapping[str, Any]]
Data = str | Path | EnvironmentSpec | type | Rows

_TEXT, _TEXTS = Line(kind=str), Line(kind=list[str])

ENVIRONMENT = typer.Argument(
    metavar="ENVIRONMENT",
    help="Environment, as in `gradus envs`; rows.jsonl or rows.csv; your own FILE.py, FILE.py:NAME or module:attribute.",
)
Environment = Annotated[Data, ENVIRONMENT, _TEXT]
DataOrRecipe = Annotated[
    Any,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="Environment or rows, as in `gradus audit`; or a TOML recipe, or the name of one that comes with Gradus.",
    ),
    Line(kind=str | None),
]
OwnEnvironment = Annotated[
    str | EnvironmentSpec | type | None,
    typer.Option(
        "--env", help="The environment of the episodes, if it is your own code: FILE.py:NAME or module:attribute."
    ),
    Line(kind=str | None),
]
Model = Annotated[
    str | Path | None,
    typer.Option("--model", "-m", help="Model folder, run folder or hub name; a nano model otherwise."),
    Line(kind=str | None),
]
RunOrModel = Annotated[
    str | Path, typer.Argument(metavar="MODEL", help="A run folder, a model folder or a hub name."), _TEXT
]
Recipe = Annotated[
    str | Path | None,
    typer.Option("--recipe", "-r", help="A TOML recipe, or one that comes with Gradus; else the environment's."),
    Line(kind=str | None),
]
Rewards = Annotated[
    Sequence[Any],
    typer.Option(
        "--reward",
        metavar="NAME=WEIGHT",
        help="A reward function as (part of) the grader: a built-in, FILE.py:FN or module:FN (repeatable).",
    ),
    _TEXTS,
]
Grader = Annotated[
    str | None, typer.Option("--grader", "-g", help="A grader of the environment; its default one otherwise.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of what is drawn at random.")]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0.0, help="Of models; 0 is greedy. Without it: as the model was trained."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", min=1, help="Longest answer of models. Without it: as the model was trained."),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="[FILE]",
        help="Print JSON instead of tables; with FILE.json, write it there and show the tables.",
    ),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Folder = Annotated[Path, typer.Argument(help="Folder to write; must be empty or not there.")]


def writes(what: str) -> Any:
    """The option ``--out``, with what is written there."""
    return typer.Option("--out", "-o", help=what)


class StageOptions(TypedDict, total=False):
    """The options that make a recipe, without the model."""

    recipe: Recipe
    rewards: Rewards
    settings: Annotated[
        Mapping[str, Any] | Sequence[str],
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Change a setting: grpo.max_steps=20; KEY= unsets it (repeatable).",
        ),
        _TEXTS,
    ]
    grader: Grader
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Fit the settings to a card of this size, as in 24GB, and print what was set."),
    ]
    trackers: Annotated[
        Sequence[str],
        typer.Option(
            "--tracker",
            help="Also send metrics to tensorboard or wandb (repeatable); metrics.jsonl is always written.",
        ),
        _TEXTS,
    ]
    quick: Annotated[bool, typer.Option("--quick", help="Every stage at toy size, for a first look.")]
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the whole run; the recipe's otherwise.")]


class RecipeOptions(StageOptions, total=False):
    """The options that make a recipe."""

    model: Model


class RunArguments(RecipeOptions, total=False):
    """The options of a run of all stages."""

    out: Annotated[
        str | Path | None,
        writes(
            "Run folder; otherwise runs/ENVIRONMENT, or runs/NAME for a recipe that has a name, with -quick at toy size."
        ),
        Line(kind=Path | None),
    ]
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", help="Train from so many seeds, one on each core; intervals are then over seeds and tasks."
        ),
    ]
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="Fit lengths, groups, steps and evaluation to a time, as in 20m or 2h; a published model on a CPU gets 1h.",
        ),
    ]
    redo: Annotated[bool, typer.Option("--redo", help="Do stages again whose settings, data or code have changed.")]
    anyway: Annotated[bool, typer.Option("--anyway", help="Go on although the audit of the grader failed.")]


def as_list(value: Any) -> list[Any]:
    """``value`` as a list; a text is a list of one.

    >>> as_list("held-out")
    ['held-out']
    """
    return [value] if isinstance(value, str) else [*value]


def require_rewards_used(rewards: Sequence[Any], graders: Iterable[str | None]) -> None:
    """Raises ConfigError if reward functions are given but only other graders are asked for, so that they would have no effect."""
    named = [each for each in graders if each is not None]
    if rewards and named and "rewards" not in named:
        raise ConfigError(
            f"reward functions are a grader of their own, called rewards, and the grader {', '.join(named)} was asked for instead; "
            "leave out the grader or the reward functions"
        )


def known_options(given: Iterable[str], options: type, call: str, also: Iterable[str] = ()) -> None:
    """Refuses arguments that a call does not have. ``options``: its TypedDict; ``also``: the arguments that it has besides."""
    known = [*also, *options.__annotations__]
    for name in given:
        if name not in known:
            raise ConfigError(f"{call} has no argument {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
