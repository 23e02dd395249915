"""Merges the layers of a recipe. A layer is a name and changes: dotted keys to values. A later layer wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gradus.core import ConfigError


@dataclass(frozen=True)
class Layer:
    """Changes by one source. None unsets a key; a number is a place in a list, as in ``stage.0.steps``."""

    name: str
    changes: Mapping[str, Any]


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the table of all layers, and the name of the layer that each key comes from (to a depth of two, as in ``grpo.lr``).

    >>> merge([Layer("recipe", {"seed": 1, "grpo.lr": 0.1}), Layer("command line", {"grpo.lr": 0.2, "seed": None})])
    ({'grpo': {'lr': 0.2}}, {'grpo.lr': 'command line'})
    """
    table: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.changes.items():
            _set(table, key, value)
            origins = {each: name for each, name in origins.items() if not f"{each}.".startswith(f"{key}.")}
            if value is not None:
                origins[".".join(key.split(".")[:2])] = layer.name
    return table, origins


def changes_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table as changes: each key of a section, and what stands outside of sections.

    >>> changes_of({"seed": 3, "grpo": {"lr": 0.1, "sampling": {"top_k": 5}}})
    {'seed': 3, 'grpo.lr': 0.1, 'grpo.sampling': {'top_k': 5}}
    >>> changes_of({"adaptive": {}})
    {'adaptive': {}}
    """
    changes: dict[str, Any] = {}
    for name, value in table.items():
        section = value if isinstance(value, Mapping) else {}
        changes |= {f"{name}.{key}": each for key, each in section.items()} or {
            name: value
        }  # [adaptive] alone says something
    return changes


def parse_changes(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Changes as a caller gives them: a mapping, or texts as typed after ``--set``. Raises ConfigError for a text without a key.

    >>> parse_changes(["grpo.max_steps=20", "stage="])
    {'grpo.max_steps': 20, 'stage': None}
    """
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        return dict(given)
    changes: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"--set takes key=value, as in --set grpo.max_steps=20, or key= to unset it; got {text!r}"
            )
        changes[key.strip()] = _value(value.strip()) if value.strip() else None
    return changes


def _set(table: dict[str, Any], dotted: str, value: Any) -> None:
    *way, last = dotted.split(".")
    inside: Any = table
    for index, part in enumerate(way):
        inside = inside[_place(inside, part, dotted)] if isinstance(inside, list) else inside.setdefault(part, {})
        if not isinstance(inside, dict | list):
            raise ConfigError(f"{dotted}: {'.'.join(way[: index + 1])} is a value, not a table")
    key: Any = _place(inside, last, dotted) if isinstance(inside, list) else last
    if value is not None:
        inside[key] = deepcopy(value)  # a later layer may change a part of it
    elif isinstance(inside, list):
        del inside[key]
    else:
        inside.pop(key, None)


def _place(entries: Sequence[Any], part: str, dotted: str) -> int:
    if not part.isdecimal() or int(part) >= len(entries):
        raise ConfigError(f"{dotted}: expected a place in a list of {len(entries)}, counted from 0, got {part}")
    return int(part)


def _value(text: str) -> Any:
    """A value as TOML understands it; anything else is a string, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
