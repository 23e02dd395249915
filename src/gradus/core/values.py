"""Values made plain: as JSON and every stored file can hold them, and as the same text in every process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast


def whole_characters(text: str) -> str:
    """Return a text with ``?`` for each half of a character, which JSON can spell and no file takes.

    >>> whole_characters("a\\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def without_address(text: str) -> str:
    """Return a text without places in memory, which differ in every run.

    >>> without_address("<object object at 0x7f00beef>")
    '<object object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def ordered(members: Iterable[Any]) -> list[Any]:
    """Return the members of a set in an order that is the same in every process: by type, numbers by size, others by their text.

    >>> ordered({"b", "a", 10, 9})
    [9, 10, 'a', 'b']
    """

    def place(member: Any) -> tuple[str, float, str]:
        return type(member).__name__, member if isinstance(member, int | float) else 0, str(member)

    return sorted(members, key=place)


def is_storable(value: Any) -> bool:
    """Say whether a file of episodes can hold a value as it is.

    >>> is_storable({"x": [1, None]}), is_storable({1, 2}), is_storable(float("nan")), is_storable("\\ud800")
    (True, False, False, False)
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def storable(value: Any) -> Any:
    """Return a value as a stored episode can hold it: what JSON does not have becomes a list, a number or a text, and NaN None.

    >>> import datetime
    >>> storable({"x": {10, 9}}), storable([datetime.date(2026, 1, 31), float("nan")])
    ({'x': [9, 10]}, ['2026-01-31', None])
    """

    def replaced(odd: Any, place: str) -> Any:
        return None if isinstance(odd, float) else whole_characters(without_address(str(odd)))

    try:
        return made_storable(value, replaced)
    except RecursionError:  # it holds itself
        return replaced(value, "")


def made_storable(value: Any, odd: Callable[[Any, str], Any], place: str = "") -> Any:
    """Return the value if it is storable, else one with text for keys, and lists for sets and for what numpy and torch have.

    What nothing else stands for is replaced by what ``odd`` gives for it and its place. Raises RecursionError for a value that holds itself.
    """
    if is_storable(value):
        return value
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for key, each in cast(Mapping[Any, Any], value).items():
            name = key if isinstance(key, str) else str(key.item() if hasattr(key, "item") else key)
            name = name if is_storable(name) else odd(name, f"a key of {place}")
            made[name] = made_storable(each, odd, f"{place}[{key!r}]")
        return made
    if isinstance(value, list | tuple):
        parts = enumerate(cast(Sequence[Any], value))
        return [made_storable(each, odd, f"{place}[{number}]") for number, each in parts]
    if isinstance(value, set | frozenset):  # their order differs from one process to the next
        return made_storable(ordered(cast(Iterable[Any], value)), odd, place)
    return made_storable(value.tolist(), odd, place) if hasattr(value, "tolist") else odd(value, place)
