"""Values that JSON does not have, made plain in one way: the same text in every process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

Json = Mapping[str, Any]  # a JSON object that is read
JsonDict = dict[str, Any]  # a JSON object that is filled


def stand_in(odd: Any) -> Any:
    """Return what stands for a value in JSON, for the ``default`` of json.dumps: a list for a set or an array, else its text.

    >>> stand_in({"b", "a"}), stand_in(object())
    (['a', 'b'], '<object object>')
    """
    if isinstance(odd, Mapping):
        return dict(cast(Mapping[Any, Any], odd))
    if isinstance(odd, set | frozenset):  # their order differs from one process to the next
        return sorted(cast(Iterable[Any], odd))
    if hasattr(odd, "tolist"):  # of numpy or torch
        return odd.tolist()
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(odd))  # places in memory differ in every run


def plain(value: Any) -> Any:
    """Return the value if JSON has it, else one that JSON has, with None for a number that is not finite.

    Raises TypeError for keys that JSON does not know and for sets of two types, and ValueError for what holds itself.

    >>> plain({"x": {"b", "a"}, "y": float("nan")})
    {'x': ['a', 'b'], 'y': None}
    """
    # Most values are plain, and the same object comes back.
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.loads(json.dumps(value, default=stand_in), parse_constant=lambda _: None)
    return value


def number_of(value: Any) -> float:
    """Return a number as a float of Python's. Raises TypeError or ValueError for what is none; a text that spells one is a text."""
    if isinstance(value, str | bytes):
        raise TypeError(f"expected a number, got the text {value[:40]!r}; return float(...) of it")
    return float(value)


def check_unicode(value: Any) -> None:
    """Raise ValueError for a value of JSON with half of a character in a text (a surrogate), which no file and no tokenizer takes.

    >>> check_unicode(["é", {"a": "b"}])
    """
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise ValueError(f"a text has half of a character, U+{half:X}; write the character as a whole") from None


def is_table(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Says whether a value of JSON or TOML is a table."""
    return isinstance(value, Mapping)


def flattened(table: Json, path: str = "") -> JsonDict:
    """The values of a table and of those in it, by dotted keys.

    >>> flattened({"seed": 3, "grpo": {"lr": 0.1}})
    {'seed': 3, 'grpo.lr': 0.1}
    """
    values: JsonDict = {}
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        values |= flattened(value, key) if is_table(value) else {key: value}
    return values


def without_none(values: Json) -> JsonDict:
    """The values that are there.

    >>> without_none({"seed": 0, "model": None})
    {'seed': 0}
    """
    return {key: value for key, value in values.items() if value is not None}


def as_mapping(value: object) -> Mapping[str, Any]:
    """A table that somebody wrote, by its keys; an empty one for any other value, which is refused where tables are checked."""
    return value if is_table(value) else {}
