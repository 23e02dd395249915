"""Reads rewards in the forms that people write, and turns the names of a recipe into functions.

A recipe names a reward: ``"correctness"``, ``"my_module:function"``, or a record with a weight and settings. In Python a reward is a function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.naming import did_you_mean, import_object
from gradus.core.values import Json, JsonDict
from gradus.rewards import functions
from gradus.rewards.code import code_tests
from gradus.rewards.compose import RewardFunction, Rewards, reward_name
from gradus.rewards.judge import Judge

BUILT_IN: dict[str, Callable[..., Any]] = {
    "correctness": functions.correctness,
    "final_answer": functions.final_answer,
    "format": functions.strict_format,
    "incremental_format": functions.incremental_format,
    "length": functions.length,
    "repetition": functions.repetition,
    "diversity": functions.diversity,
    "style": functions.style,
    "json_schema": functions.json_schema,
    "code_tests": code_tests,
    "judge": Judge,
}
IN_MEMORY = "python:"  # how the name of a function begins that no other process can find
_FACTORIES = {"length", "repetition", "diversity", "style", "json_schema", "code_tests", "judge"}


class RewardConfig(BaseModel):
    """One line of a recipe's rewards, made of a table, of a pair ``["correctness", 2.0]``, or of a text ``"correctness=2"``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    function: str
    """A built-in, `module:function`, or `FILE.py:function`."""
    weight: float = 1.0
    """What its values are multiplied by."""
    settings: JsonDict = Field(default_factory=dict)
    """What the built-in's maker gets (`length`: limit; `style`: pattern)."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, entry: Any) -> Any:
        """Reads a text or a pair as a table."""
        if isinstance(entry, str):
            name, _, weight = entry.partition("=")
            return {"function": name, "weight": weight or 1.0}
        if not isinstance(entry, list | tuple):
            return entry
        pair = list(cast(Sequence[Any], entry))
        if len(pair) != 2:
            raise ValueError(f"a reward is a pair of name and weight, got {pair!r}")
        return {"function": pair[0], "weight": pair[1]}


def parse_reward(entry: Any) -> RewardConfig:
    """Reads one reward: ``NAME[=WEIGHT]``, a pair of name and weight, a table, or a RewardConfig. Raises ConfigError for others."""
    try:
        return RewardConfig.model_validate(entry)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"a reward is NAME, NAME=WEIGHT or a table with function and weight, got {entry!r}: {reason}"
        ) from error


def reward_pairs(rewards: Any) -> list[tuple[Any, float | None]]:
    """Returns functions or names with their weights, None if no weight is given. Raises ConfigError for anything else.

    ``rewards``: functions, names, and pairs of one and its weight; a mapping from these to weights; or one name.
    """
    if isinstance(rewards, str):
        rewards = [rewards]  # a text can be iterated over too
    if isinstance(rewards, Mapping):
        rewards = list(cast(Mapping[Any, Any], rewards).items())
    if not isinstance(rewards, Iterable):
        raise ConfigError(f"rewards are a list, as in rewards=[right, (brief, 0.2)], got {rewards!r}")
    pairs: list[tuple[Any, float | None]] = []
    for entry in cast(Iterable[Any], rewards):
        pair = cast(Sequence[Any], entry) if isinstance(entry, tuple | list) else (entry, None)
        if len(pair) != 2 or not (isinstance(pair[0], str) or callable(pair[0])):
            raise ConfigError(f"a reward is a function or a name, or a pair of one and its weight; got {entry!r}")
        reward, weight = pair
        try:
            pairs.append((reward, None if weight is None else float(weight)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the weight of a reward is a number, got {weight!r}") from error
    return pairs


@frozen_record
class RewardChoice:
    """The rewards of one call: what a recipe stores of them, and the functions that were handed over as objects, by that name."""

    entries: tuple[RewardConfig, ...] = ()
    functions: Mapping[str, RewardFunction] = field(default_factory=dict[str, RewardFunction])


def choose_rewards(rewards: Any) -> RewardChoice:
    """Reads rewards as :func:`reward_pairs` takes them. Raises ConfigError for anything else."""
    entries: list[RewardConfig] = []
    functions: dict[str, RewardFunction] = {}
    for reward, weight in reward_pairs(rewards):
        if isinstance(reward, str):
            entry = parse_reward(reward)
        else:
            entry = RewardConfig(function=reward_label(reward))
            functions[entry.function] = reward
        entries.append(entry if weight is None else entry.model_copy(update={"weight": weight}))
    return RewardChoice(entries=tuple(entries), functions=functions)


def load_rewards(
    entries: Sequence[Any], *, functions: Mapping[str, RewardFunction] | None = None, messages: bool = False
) -> Rewards:
    """Makes Rewards of a recipe's entries, see :func:`parse_reward`. ``functions``: what an entry's name stands for, if it is no importable name."""
    functions = functions or {}
    pairs: list[tuple[RewardFunction, float]] = []
    for config in map(parse_reward, entries):
        function = functions.get(config.function) or find_reward(config.function, config.settings)
        pairs.append((function, config.weight))
    return Rewards(pairs, messages=messages)


def find_reward(name: str, settings: Json | None = None) -> RewardFunction:
    """Returns a built-in by name, or ``module:function`` or ``file.py:function`` for one's own."""
    settings = settings or {}
    if name in _FACTORIES:
        return _with_settings(name, BUILT_IN[name], settings)
    if name in BUILT_IN:
        if settings:
            raise ConfigError(f"reward {name!r} takes no settings, got {', '.join(settings)}")
        return BUILT_IN[name]
    if name.startswith(IN_MEMORY):
        raise ConfigError(
            f"the reward {name.removeprefix(IN_MEMORY)!r} is a function of another session; give it again with rewards=[...]"
        )
    if ":" not in name:
        raise ConfigError(
            f"unknown reward {name!r}{did_you_mean(name, BUILT_IN)}; known are {', '.join(BUILT_IN)}, or give "
            "module:function or FILE.py:function"
        )
    function: Any = import_object(name, "reward")
    if not callable(function):
        raise ConfigError(f"reward {name!r} is a {type(function).__name__}, expected a function")
    return _with_settings(name, function, settings) if settings else cast(RewardFunction, function)


def _with_settings(name: str, make: Callable[..., Any], settings: Json) -> RewardFunction:
    try:
        return make(**settings)
    except TypeError as error:  # a setting that it does not have, or one that is missing
        names = ", ".join(inspect.signature(make).parameters)
        raise ConfigError(f"reward {name!r}: {error}; its settings in a recipe are {names}") from error


def built_in_name(function: RewardFunction) -> str:
    """Returns the name of a built-in reward; empty for any other function."""
    return next((name for name, built_in in BUILT_IN.items() if built_in is function), "")


def reward_label(function: RewardFunction) -> str:
    """Returns what a recipe stores of a function: its built-in name, ``module:function`` if it can be imported, else ``python:name``."""
    name = built_in_name(function)
    if name:
        return name
    module = getattr(function, "__module__", "__main__")
    qualname = getattr(function, "__qualname__", "<none>")
    # Another process has another __main__, and finds no method or function of a function by its name.
    if module != "__main__" and getattr(sys.modules.get(module), qualname, None) is function:
        return f"{module}:{qualname}"
    return f"{IN_MEMORY}{reward_name(function)}"
