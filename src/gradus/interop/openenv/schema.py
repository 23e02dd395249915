"""Describes an environment to OpenEnv clients: the schemas of its messages, its metadata, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.waiting import blocking
from gradus.interop.openenv.wire import FIELDS, clashing
from gradus.rollouts.received import plain, received
from gradus.version import __version__

_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}
_FIXED: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "description": "What a language model reads."},
    "system_prompt": {"type": ["string", "null"], "description": "The rules; sent with a reset, null after a step."},
    "terminated": {"type": "boolean", "description": "The environment reached its own end."},
    "truncated": {"type": "boolean", "description": "The environment was cut by its own limit."},
    "restart": {"type": "boolean", "description": "Earlier turns must not be shown to the policy again."},
    "action_valid": {"type": "boolean", "description": "Whether the last action was understood."},
    "action_error": {"type": ["string", "null"], "description": "What was wrong with the last action."},
    "tools": {"type": "array", "description": "Schemas of the tools that may be called; sent with a reset."},
}
_CALLS = ' A call of a tool is a line of it: {"name": "count", "arguments": {"item": "figs"}}.'


def schemas(spec: EnvironmentSpec) -> dict[str, Any]:
    """JSON schemas of action, observation and state. The environment's own fields are read off its first observation.

    Raises ConfigError if one of them has a name that stands for something else on the wire.
    """
    environment = blocking(spec.make())
    try:
        task = spec.train_task(0)
        observation = received(environment.reset(seed=task.seed, **task.options), "reset")
        state = plain(dict(environment.state), "state")
        typed: Mapping[str, Any] | None = getattr(environment, "action_schema", None)
        has_tools = bool(getattr(environment, "tools", ()))
    finally:
        environment.close()
    if clash := clashing(observation):
        raise ConfigError(
            f"{spec.name} cannot be served: its observations' data use the names {clash}, which every environment has on the "
            "wire; give them other names"
        )
    answer = _text_action(has_tools)
    action = answer if typed is None else {"title": "Action", "anyOf": [dict(typed), answer]}
    fields = {name: _FIXED[name] for name in FIELDS} | {k: _schema_of(v) for k, v in observation.data.items()}
    fields |= {"reward": {"type": ["number", "null"]}, "done": {"type": "boolean"}}
    return {
        "action": action,
        "observation": {"title": "Observation", "type": "object", "properties": fields},
        "state": {
            "title": "State",
            "type": "object",
            "properties": {name: _schema_of(value) for name, value in {**state, "reset": {}}.items()},
        },
    }


def _text_action(has_tools: bool) -> dict[str, Any]:
    described = "A policy's answer, as a language model writes it." + (_CALLS if has_tools else "")
    return {
        "title": "TextAction",
        "type": "object",
        "properties": {"text": {"type": "string", "description": described}},
        "required": ["text"],
    }


def _schema_of(value: Any) -> dict[str, Any]:
    return _TYPES.get(type(value), {})


def metadata(spec: EnvironmentSpec) -> dict[str, Any]:
    """OpenEnv's EnvironmentMetadata."""
    return {
        "name": spec.name,
        "description": spec.summary,
        "readme_content": None,
        "version": __version__,
        "author": None,
        "documentation_url": None,
    }


def openapi(spec: EnvironmentSpec) -> dict[str, Any]:
    """The OpenAPI document that ``openenv validate --url`` looks for. Episodes are run over ``/ws`` alone."""
    answers = {"200": {"description": "answered"}}
    paths = {"/schema": "get", "/metadata": "get", "/health": "get", "/mcp": "post"}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Gradus environment {spec.name}", "description": spec.summary, "version": "1.0.0"},
        "paths": {path: {method: {"responses": answers}} for path, method in paths.items()},
    }
