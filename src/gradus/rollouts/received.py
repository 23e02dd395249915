"""Checks of what an environment gave, before it becomes part of an episode: later it could only break storing or grading.

JSON values pass as they are. Values of numpy, sets and other keys than texts are made plain; the rest is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradus.core import EnvironmentFault, Message, Observation
from gradus.core.records import LARGEST_REWARD
from gradus.core.values import is_storable, made_storable
from gradus.rollouts.storage import encode


def received(given: Any, method: str, *, plain_data: bool = False) -> Observation:
    """Return the Observation that ``method`` gave, of plain values. Raises EnvironmentFault, which says what was expected.

    ``plain_data``: the environment says that its data are what JSON can hold; to look at much of it at each step takes time.
    """
    if not isinstance(given, Observation):
        raise EnvironmentFault(f"{method}: expected an Observation, got {_kind(given)}")
    _check_text(given.text, f"the text that {method} gave")
    if not all(isinstance(each, Message) for each in given.messages):
        raise EnvironmentFault(f"{method}: expected messages that are Messages, got {_kind(given.messages)}")
    for each in given.messages:
        _check_text(each.content, f"the content of a message that {method} gave")
    if given.action_error is not None:
        _check_text(given.action_error, f"the action_error that {method} gave")
    calls = [*given.action_calls, *(call for each in given.messages for call in each.calls)]
    if calls and not is_storable(encode(calls)):
        raise EnvironmentFault(f"{method} gave calls of tools that no file can hold; expected what JSON can hold")
    changes: dict[str, Any] = {}
    if (reward := _reward(given.reward, method)) is not given.reward:
        changes["reward"] = reward
    for name in ("terminated", "truncated", "restart", "action_valid"):
        value = getattr(given, name)
        if isinstance(value, str | Mapping):
            raise EnvironmentFault(f"{method}: expected {name} to be True or False, got {value!r:.60}")
        if not isinstance(value, bool):  # JSON does not know numpy's truth values
            changes[name] = bool(value)
    for name in () if plain_data else ("data", "action_data"):
        value = getattr(given, name)
        if value and (made := plain(value, name)) is not value:
            changes[name] = made
    return replace(given, **changes) if changes else given


def plain(given: Any, where: str) -> Any:
    """Return the value if JSON can hold it, else one that JSON can. Raises EnvironmentFault, which says where it cannot."""

    def refused(odd: Any, place: str) -> Any:
        if is_storable(encode(odd)):
            return odd
        shown = f"{odd!a:.60}" if isinstance(odd, float | str) else f"of type {type(odd).__name__}"
        raise EnvironmentFault(f"{place} is {shown}; expected what JSON can hold")

    try:
        stored = is_storable(given) or is_storable(encode(given))
        return given if stored else made_storable(given, refused, where)
    except RecursionError:
        raise EnvironmentFault(
            f"{where:.60} is nested too deeply, or holds itself; expected what JSON can hold"
        ) from None


def checked_prompt(given: Any) -> str:
    """Return a system prompt, which may be missing."""
    if given is None:
        return ""
    _check_text(given, "system_prompt")
    return given


def check_answer(text: Any) -> None:
    """Raise EnvironmentFault unless an answer is text that can be written down."""
    _check_text(text, "the answer")


def _reward(given: Any, method: str) -> Any:
    value = given.item() if hasattr(given, "item") and not isinstance(given, float) and _size(given) == 1 else given
    if value is None or (isinstance(value, int | float) and abs(value) <= LARGEST_REWARD):
        return value
    shown = f"{value}" if isinstance(value, float) else f"{value!r:.60}"
    raise EnvironmentFault(f"{method} gave the reward {shown}; expected a finite number, at most {LARGEST_REWARD:g}")


def _size(given: Any) -> int:
    size = getattr(given, "size", 1)
    return size if isinstance(size, int) else int(given.numel())  # a tensor's size is a method


def _check_text(given: Any, what: str) -> None:
    if not isinstance(given, str):
        raise EnvironmentFault(f"{what} is {_kind(given)}; expected text")
    try:
        given.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = given[error.start]
        raise EnvironmentFault(f"{what} holds {lone!a}, half of a character, which no file can hold") from None


def _kind(given: Any) -> str:
    if given is None:
        return "None"
    return f"a {type(given).__name__}, {given!r:.60}" if isinstance(given, str | int | float) else type(given).__name__
