"""What an environment of another make shows, as the text that a model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gradus.core.values import ordered


def as_text(seen: Any) -> str:
    """Text as it is, bytes as the text that they are, anything else as JSON."""
    if isinstance(seen, str):
        return seen
    if isinstance(seen, bytes | bytearray):
        return seen.decode("utf-8", "backslashreplace")
    try:
        text = json.dumps(seen, default=_listed, ensure_ascii=False)
    except TypeError:  # keys that JSON does not know
        text = json.dumps(_keyed(seen), default=lambda value: _keyed(_listed(value)), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _listed(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return ordered(value)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _keyed(value: Any) -> Any:
    """The same with text for keys."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _keyed(each) for key, each in value.items()}
    return [_keyed(each) for each in value] if isinstance(value, list | tuple) else value
