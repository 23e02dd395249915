"""Options that mean the same in every command, each declared once with its help, and checks of what a call was given.

A command is a function. cyclopts reads its signature for the command line: a parameter without a star before it may stand alone in the
line, every other one is an option. ``WORD``, ``WORDS`` and ``COMMAS`` say how words become the value of a parameter that takes objects in
Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.naming import did_you_mean
from gradus.core.values import Json

LORA = "true"  # the value of --lora without one
Rows = Sequence[Json]
Data = str | Path | EnvironmentSpec | type | Rows


def _one_word(_: Any, tokens: Sequence[Token]) -> str:
    return tokens[0].value


def _every_word(_: Any, tokens: Sequence[Token]) -> list[str]:
    return [token.value for token in tokens]


def _between_commas(_: Any, tokens: Sequence[Token]) -> list[str]:
    parts = (part.strip() for token in tokens for part in token.value.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def _numbers_between_commas(_: Any, tokens: Sequence[Token]) -> list[int]:
    texts = _between_commas(_, tokens)
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise ValueError(f"expected whole numbers, as in 1,8; got {','.join(texts)!r}") from None


def _rank(_: Any, tokens: Sequence[Token]) -> int | bool:
    text = tokens[0].value
    if text != LORA and not text.isdecimal():
        raise ValueError(f"expected a rank, as in --lora 16, or none; got {text!r}")
    return text == LORA or int(text)


# Their parameters take records in Python, whose fields cyclopts would otherwise make options of.
WORD = Parameter(accepts_keys=False, n_tokens=1, converter=_one_word)
WORDS = Parameter(accepts_keys=False, n_tokens=1, converter=_every_word, show_default=False)
COMMAS = Parameter(accepts_keys=False, n_tokens=1, converter=_between_commas, show_default=False)
NUMBERS = Parameter(accepts_keys=False, n_tokens=1, converter=_numbers_between_commas, show_default=False)
AT_LEAST_ONE = Parameter(validator=Number(gte=1))

Environment = Annotated[
    Data,
    WORD,
    Parameter(
        name="environment",
        help="Environment, as in `gradus envs`; rows.jsonl or rows.csv; your own FILE.py, FILE.py:NAME or module:attribute.",
    ),
]
DataOrRecipe = Annotated[
    Any,
    WORD,
    Parameter(
        name="environment",
        help="Environment or rows, as in `gradus audit`; or a TOML recipe, or the name of one that comes with Gradus.",
    ),
]
OwnEnvironment = Annotated[
    str | EnvironmentSpec | type | None,
    WORD,
    Parameter(
        name="--env",
        metavar="FILE.py:NAME",
        help="The environment of the episodes, if it is your own code: FILE.py:NAME or module:attribute.",
    ),
]
Model = Annotated[
    str | Path | None,
    WORD,
    Parameter(
        name=("--model", "-m"), metavar="MODEL", help="Model folder, run folder or hub name; a nano model otherwise."
    ),
]
RunOrModel = Annotated[str | Path, WORD, Parameter(name="model", help="A run folder, a model folder or a hub name.")]
Recipe = Annotated[
    str | Path | None,
    WORD,
    Parameter(
        name=("--recipe", "-r"),
        metavar="RECIPE",
        help="A TOML recipe, or one that comes with Gradus; else the environment's.",
    ),
]
Rewards = Annotated[
    Sequence[Any],
    WORDS,
    Parameter(
        name="--reward",
        metavar="NAME=WEIGHT",
        help="A reward function as (part of) the grader: a built-in, FILE.py:FN or module:FN (repeatable).",
    ),
]
Grader = Annotated[
    str | None,
    Parameter(name=("--grader", "-g"), metavar="NAME", help="A grader of the environment; its default one otherwise."),
]
Seed = Annotated[int, Parameter(help="Seed of what is drawn at random.")]
Temperature = Annotated[
    float | None,
    Parameter(validator=Number(gte=0), help="Of models; 0 is greedy. Without it: as the model was trained."),
]
MaxNewTokens = Annotated[
    int | None, AT_LEAST_ONE, Parameter(help="Longest answer of models. Without it: as the model was trained.")
]
Host = Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="Port to listen on; 0 takes a free one.")]
Overwrite = Annotated[bool, Parameter(help="Replace what is there.")]


def writes(what: str) -> Parameter:
    """The option ``--out``, with what is written there."""
    return Parameter(name=("--out", "-o"), n_tokens=1, metavar="PATH", help=what)


class StageOptions(TypedDict, total=False):
    """The options that make a recipe, without the model."""

    recipe: Recipe
    rewards: Rewards
    settings: Annotated[
        Json | Sequence[str],
        WORDS,
        Parameter(
            name=("--set", "-s"),
            metavar="KEY=VALUE",
            help="Change a setting: grpo.max_steps=20; KEY= unsets it (repeatable).",
        ),
    ]
    grader: Grader
    memory: Annotated[
        str | None,
        Parameter(metavar="SIZE", help="Fit the settings to a card of this size, as in 24GB, and print what was set."),
    ]
    trackers: Annotated[
        Sequence[str],
        WORDS,
        Parameter(
            name="--tracker",
            metavar="NAME",
            help="Also send metrics to tensorboard or wandb (repeatable); metrics.jsonl is always written.",
        ),
    ]
    trainer: Annotated[
        str | None,
        Parameter(help="Train and sample on a server of the Tinker API: tinker:URL; in this process otherwise."),
    ]
    lora: Annotated[
        int | bool | None,
        Parameter(
            name="--lora",
            metavar="[RANK]",
            n_tokens=1,
            converter=_rank,
            help="Train adapters of this rank (16 without it) at their own rates.",
        ),
    ]
    quick: Annotated[bool, Parameter(help="Every stage at toy size, for a first look.")]
    seed: Annotated[int | None, Parameter(help="Seed of the whole run; the recipe's otherwise.")]
    max_cost: Annotated[
        str | None,
        Parameter(metavar="DOLLARS", help="Stop before this is spent, as in 5usd, by the recipe's [prices]."),
    ]


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
    ]
    seeds: Annotated[
        int | None,
        Parameter(help="Train from so many seeds, one on each core; intervals are then over seeds and tasks."),
    ]
    time: Annotated[
        str | None,
        Parameter(
            metavar="TIME",
            help="Fit lengths, groups, steps and evaluation to a time, as in 20m or 2h; a published model on a CPU gets 1h.",
        ),
    ]
    arms: Annotated[
        Sequence[str],
        COMMAS,
        Parameter(
            metavar="ARM,ARM",
            help="Train in several ways, with an equal share of the time: sft, grpo, sft+grpo, distill.",
        ),
    ]
    redo: Annotated[bool, Parameter(help="Do stages again whose settings, data or code have changed.")]
    anyway: Annotated[bool, Parameter(help="Go on although the audit of the grader failed.")]


def as_list(value: Any) -> list[Any]:
    """``value`` as a list; a text is a list of one.

    >>> as_list("held-out")
    ['held-out']
    """
    return [value] if isinstance(value, str) else [*value]


def known_options(names: Iterable[str], options: type, call: str, also: Iterable[str] = ()) -> None:
    """Refuses arguments that a call does not have. ``options``: its TypedDict; ``also``: the arguments that it has besides."""
    taken = [*also, *options.__annotations__]
    for name in names:
        if name not in taken:
            raise ConfigError(f"{call} has no argument {name!r}{did_you_mean(name, taken)}; it has {', '.join(taken)}")
