"""Checks of what an environment or a policy gave, before it becomes part of an episode: later it could only break storing or grading."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

from gradus.core import EnvironmentFault, Message, Observation
from gradus.core.records import LARGEST_REWARD
from gradus.core.values import plain


def received(given: Any, method: str, *, plain_data: bool = False) -> Observation:
    """Return the Observation that ``method`` gave, of plain values. Raises EnvironmentFault, which says what was expected.

    ``plain_data``: the environment says that its data are what JSON can hold; to look at much of it at each step takes time.
    """
    if not isinstance(given, Observation):
        raise EnvironmentFault(f"{method}: expected an Observation, got {_kind(given)}")
    if not all(isinstance(each, Message) for each in given.messages):
        raise EnvironmentFault(f"{method}: expected messages that are Messages, got {_kind(given.messages)}")
    for text in (given.text, *(each.content for each in given.messages)):
        check_text(text, f"the text that {method} gave")
    made: dict[str, Any] = {"reward": _reward(given.reward, method)}
    for name in ("terminated", "truncated", "restart", "action_valid"):
        made[name] = bool(getattr(given, name))  # JSON does not know numpy's truth values
    if not plain_data:
        made |= {"data": plain(given.data), "action_data": plain(given.action_data)}
    changes = {name: value for name, value in made.items() if value is not getattr(given, name)}
    return replace(given, **changes) if changes else given


def check_text(given: Any, what: str) -> None:
    """Raise EnvironmentFault for anything but text."""
    if not isinstance(given, str):
        raise EnvironmentFault(f"{what} is {_kind(given)}; expected text")


def checked_prompt(given: Any) -> str:
    """Return a system prompt, which may be missing."""
    prompt = "" if given is None else given
    check_text(prompt, "system_prompt")
    return prompt


def _reward(given: Any, method: str) -> Any:
    """Return the reward as a number of Python's."""
    if given is None:
        return None
    try:
        value = given if isinstance(given, int | float) else float(given)
    except (TypeError, ValueError):
        value = nan
    if not abs(value) <= LARGEST_REWARD:
        raise EnvironmentFault(
            f"{method} gave the reward {given!r:.60}; expected a finite number, at most {LARGEST_REWARD:g}"
        )
    return value


def _kind(given: Any) -> str:
    return f"a {type(given).__name__}, {given!r:.60}" if isinstance(given, str | int | float) else type(given).__name__
