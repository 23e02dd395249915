"""Checks of arguments: a value that cannot be meant is a ConfigError that names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradus.core import ConfigError
from gradus.core.naming import did_you_mean


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
    from gradus.runs.recipe.trl_names import trl_hint

    known = [*also, *options.__annotations__]
    for name in given:
        if name not in known:
            hint = trl_hint(name) if "settings" in known else ""
            hint += ", a key of settings" if "." in hint else ""
            raise ConfigError(
                f"{call} has no argument {name!r}{hint or did_you_mean(name, known)}; it has {', '.join(known)}"
            )
