"""The words of OpenEnv's wire: messages as JSON text, and what may go wrong with one.

The protocol is that of openenv 0.10. A request is ``{"type": "reset" | "step" | "state" | "close",
"data": {...}}``; an answer ``{"type": "observation" | "state" | "error", "data": {...}}``. All that
matters is an observation field, because servers may drop an observation's ``metadata``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.core import Observation

FIELDS = ("text", "system_prompt", "tools", "terminated", "truncated", "restart", "action_valid", "action_error")
"""Observation fields that every environment has on the wire; the environment's own ``data`` stands beside them."""

dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass
class WireError(Exception):
    """A request that cannot be served. ``code`` is one of OpenEnv's WSErrorCode."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def loads(raw: str | bytes) -> dict[str, Any]:
    """One message as an object; WireError says what is wrong with it otherwise."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError("INVALID_JSON", f"expected one JSON object, got text that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("VALIDATION_ERROR", f'expected an object {{"type": ...}}, got {type(message).__name__}')
    return message


def observation_data(
    observation: Observation, system_prompt: str | None = None, tools: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the answer to a reset or a step: ``{"observation": {...}, "reward": x, "done": b}``.

    The structured observation stands flat beside :data:`FIELDS`, so that a typed client reads ``observation.vitality``.
    """
    if clash := sorted(observation.data.keys() & FIELDS):
        raise WireError("EXECUTION_ERROR", f"the environment's data may not use the field names {clash}")
    own = {name: getattr(observation, name) for name in FIELDS if name not in ("system_prompt", "tools")}
    fields = {**own, "system_prompt": system_prompt, "tools": list(tools), **observation.data}
    done = observation.terminated or observation.truncated
    return {"observation": fields, "reward": observation.reward, "done": done}
