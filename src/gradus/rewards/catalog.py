"""Finds rewards that a recipe names: ``"correctness"``, ``"my_module:function"``, or a record with a weight and settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gradus.core import ConfigError
from gradus.core.naming import did_you_mean, import_object
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
_GIVEN: dict[str, RewardFunction] = {}
_FACTORIES = {"length", "repetition", "diversity", "style", "json_schema", "code_tests", "judge"}


class RewardConfig(BaseModel):
    """One line of a recipe's rewards, made of a table, of a pair ``["correctness", 2.0]``, or of a text ``"correctness=2"``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str = Field(description="A built-in, `module:function`, or `FILE.py:function`.")
    weight: float = Field(default=1.0, description="What its values are multiplied by.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="What the built-in's maker gets (`length`: limit; `style`: pattern)."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        if isinstance(given, str):
            name, _, weight = given.partition("=")
            return {"function": name, "weight": weight or 1.0}
        if isinstance(given, list | tuple):
            if len(given) != 2:
                raise ValueError(f"a reward is a pair of name and weight, got {list(given)!r}")
            return {"function": given[0], "weight": given[1]}
        return given


def parse_reward(entry: Any) -> RewardConfig:
    """Reads one reward: ``NAME[=WEIGHT]``, a pair of name and weight, a table, or a RewardConfig. Raises ConfigError for others."""
    try:
        return RewardConfig.model_validate(entry)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"a reward is NAME, NAME=WEIGHT or a table with function and weight, got {entry!r}: {said}"
        ) from error


def reward_pairs(rewards: Any) -> list[tuple[Any, float | None]]:
    """Returns functions or names with their weights, None if no weight is given. Raises ConfigError for anything else.

    ``rewards``: functions, names, and pairs of one and its weight; a mapping from these to weights; or one name.
    """
    if isinstance(rewards, str):
        rewards = [rewards]
    if isinstance(rewards, Mapping):
        rewards = [*rewards.items()]
    if not isinstance(rewards, Iterable):
        raise ConfigError(f"rewards are a list, as in rewards=[right, (brief, 0.2)], got {rewards!r}")
    pairs: list[tuple[Any, float | None]] = []
    for each in rewards:
        pair: Any = each if isinstance(each, tuple | list) else (each, None)
        if len(pair) != 2 or not (isinstance(pair[0], str) or callable(pair[0])):
            raise ConfigError(f"a reward is a function or a name, or a pair of one and its weight; got {each!r}")
        try:
            pairs.append((pair[0], None if pair[1] is None else float(pair[1])))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the weight of a reward is a number, got {pair[1]!r}") from error
    return pairs


def load_rewards(entries: Sequence[Any], *, messages: bool = False) -> Rewards:
    """Makes Rewards of a recipe's entries, see :func:`parse_reward`."""
    configs = [parse_reward(entry) for entry in entries]
    return Rewards(
        [(find_reward(config.function, config.settings), config.weight) for config in configs], messages=messages
    )


def find_reward(name: str, settings: Mapping[str, Any] | None = None) -> RewardFunction:
    """Returns a built-in by name, or ``module:function`` or ``file.py:function`` for one's own."""
    settings = settings or {}
    if name in BUILT_IN:
        if name not in _FACTORIES:
            if settings:
                raise ConfigError(f"reward {name!r} takes no settings, got {', '.join(settings)}")
            return BUILT_IN[name]
        return _made(name, BUILT_IN[name], settings)
    if (given := _GIVEN.get(name)) is not None:
        return given
    if ":" not in name:
        raise ConfigError(
            f"unknown reward {name!r}{did_you_mean(name, BUILT_IN)}; known are {', '.join(BUILT_IN)}, or give "
            "module:function or FILE.py:function"
        )
    own: Any = import_object(name, "reward")
    if not callable(own):
        raise ConfigError(f"reward {name!r} is a {type(own).__name__}, expected a function")
    function: Any = _made(name, own, settings) if settings else own
    return function


def _made(name: str, make: Callable[..., Any], settings: Mapping[str, Any]) -> RewardFunction:
    try:
        return make(**settings)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters)
        raise ConfigError(f"reward {name!r}: {error}; its settings in a recipe are {known}") from error


def register_reward(function: RewardFunction) -> str:
    """Names a function for a recipe: ``module:function`` if it can be imported, else a name that holds in this process."""
    for name, known in BUILT_IN.items():
        if known is function:
            return name
    module, qualname = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<none>")
    if getattr(sys.modules.get(module), qualname, None) is function and module != "__main__":
        return f"{module}:{qualname}"
    name = f"python:{reward_name(function)}"
    _GIVEN[name] = function
    return name
