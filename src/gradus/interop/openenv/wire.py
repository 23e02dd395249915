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

# ASCII only: a lone surrogate in a client's text could not be sent back otherwise.
dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_EPISODE_ID_LENGTH = 255  # OpenEnv's own limit


@dataclass
class WireError(Exception):
    """A request that cannot be served. ``code`` is one of OpenEnv's WSErrorCode; ``details`` go beside the message."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def loads(raw: str | bytes) -> dict[str, Any]:
    """One message as an object; WireError says what is wrong with it otherwise."""
    try:
        message = json.loads(raw)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("INVALID_JSON", f"expected one JSON object, got text that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("VALIDATION_ERROR", f'expected an object {{"type": ...}}, got {type(message).__name__}')
    return message


def clashing(observation: Observation) -> list[str]:
    """The names in an observation's ``data`` that stand for something else on the wire."""
    return sorted(observation.data.keys() & FIELDS)


def observation_data(
    observation: Observation, system_prompt: str | None = None, tools: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the answer to a reset or a step: ``{"observation": {...}, "reward": x, "done": b}``.

    The structured observation stands flat beside :data:`FIELDS`, so that a typed client reads ``observation.vitality``.
    """
    if clash := clashing(observation):
        raise WireError("EXECUTION_ERROR", f"the environment's data may not use the field names {clash}")
    fields: dict[str, Any] = {
        "text": observation.text,
        "system_prompt": system_prompt,
        "tools": list(tools),
        "terminated": observation.terminated,
        "truncated": observation.truncated,
        "restart": observation.restart,
        "action_valid": observation.action_valid,
        "action_error": observation.action_error,
        **observation.data,
    }
    done = observation.terminated or observation.truncated
    return {"observation": fields, "reward": observation.reward, "done": done}


def reset_arguments(data: Mapping[str, Any]) -> tuple[int | None, str | None, dict[str, Any]]:
    """Seed, episode id and the remaining options of a reset request, checked."""
    options = dict(data)
    seed = options.pop("seed", None)
    episode_id = options.pop("episode_id", None)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise WireError("VALIDATION_ERROR", f"seed must be a non-negative integer or null, got {seed!r}")
    if episode_id is not None and (not isinstance(episode_id, str) or len(episode_id) > _EPISODE_ID_LENGTH):
        raise WireError("VALIDATION_ERROR", f"episode_id must be a string of at most {_EPISODE_ID_LENGTH} characters")
    return seed, episode_id, options
