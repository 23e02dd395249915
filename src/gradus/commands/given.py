"""Checks of arguments: a value that cannot be meant is a ConfigError that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradus.commands.options import Sampling
from gradus.core import ConfigError
from gradus.core.naming import did_you_mean


def as_list(name: str, value: Any, *, example: str) -> list[Any]:
    """``value`` as a list; a text is a list of one.

    >>> as_list("conditions", "held-out", example="['held-out']")
    ['held-out']
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name} is a list, as in {example}, got {value!r}")
    return [*value]


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
    from gradus.runs.recipe.trl_names import trl_hint

    known = [*also, *options.__annotations__]
    for name in given:
        if name not in known:
            hint = trl_hint(name) if "settings" in known else ""
            hint += ", a key of settings" if "." in hint else ""
            raise ConfigError(
                f"{call} has no argument {name!r}{hint or did_you_mean(name, known)}; it has {', '.join(known)}"
            )


def path_text(name: str, value: Any) -> str:
    """A name, a path or a run as text."""
    try:
        return str(os.fspath(value))
    except TypeError:
        raise ConfigError(f"{name} is a name, a folder or a run, got {value!r}") from None


def checked_sampling(sampling: Mapping[str, Any], call: str = "", also: Iterable[str] = ()) -> dict[str, Any]:
    """``temperature``, ``max_new_tokens`` and ``keep_history``, as far as they are given. ``also``: arguments that the call has besides."""
    known_options(sampling, Sampling, call, also)
    temperature, limit = sampling.get("temperature"), sampling.get("max_new_tokens")
    if temperature is not None and not 0 <= temperature < float("inf"):
        raise ConfigError(f"temperature is 0 (greedy) or more, got {temperature!r}")
    if limit is not None and limit < 1:
        raise ConfigError(f"max_new_tokens is 1 or more, got {limit!r}")
    return dict(sampling)
