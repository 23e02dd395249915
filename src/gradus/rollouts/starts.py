"""How an episode begins for its policy, and where two beginnings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Observation


def start_of(shown: Observation, system_prompt: str, tools: Sequence[Any]) -> Mapping[str, Any]:
    """What a policy can know before it answers, by name."""
    return {"text": shown.text, "messages": shown.messages, "system prompt": system_prompt, "tools": tuple(tools)}


def unequal_starts(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first thing in which two starts differ, as words; None if they are equal."""
    for name, value in one.items():
        if value != other[name]:
            a, b = (repr(each) for each in (value, other[name]))
            begin = max(0, next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b)) - 40)
            a, b = (f"{'…' if begin else ''}{each[begin : begin + 80]}" for each in (a, b))
            return f"{a} and {b}" if name == "text" else f"different {name}: {a} and {b}"
    return None
