"""Describes an environment for an OpenEnv package: its fields, and the range of its rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode
from gradus.interop.openenv.schema import schemas
from gradus.rollouts import roll_out

_EPISODES = 20  # rolled out to see how large rewards get
_TYPES = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "array": "list", "object": "dict"}


def openenv_values(spec: EnvironmentSpec, words: Sequence[str]) -> dict[str, Any]:
    """Returns the values of OpenEnv's templates.

    Raises ConfigError if an episode has no reward, because its last step could not be answered.
    """
    described = schemas(spec)
    word = "_".join(words).lower()
    seen: Mapping[str, Any] = described["observation"]["properties"]
    return {
        "action": _fields(described["action"]),
        "annotation": lambda schema: _TYPES.get(str(schema.get("type")), "Any"),
        "module": f"{word}_env",
        "observation": {key: schema for key, schema in seen.items() if key not in ("reward", "done")},  # OpenEnv's own
        "project": f"openenv-{word.replace('_', '-')}",
        "library": "openenv>=0.10",
        "rewards": _reward_range(spec),
        "title": "".join(part[0].upper() + part[1:] for part in words),
    }


def _fields(action: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema for each in action.get("anyOf", [action]) for key, schema in each["properties"].items()}


def _reward_range(spec: EnvironmentSpec) -> tuple[float, float]:
    """The range that the grader declares; otherwise that of 0, 1 and a step's reward in a few random episodes, rounded outwards.

    Raises ConfigError if an episode has no reward, because its last step could not be answered.
    """
    if (declared := spec.grader().range) is not None:
        return declared
    policy = spec.policy("random" if "random" in spec.policies else "constant")
    tasks = [spec.train_task(index) for index in range(_EPISODES)]
    episodes = roll_out(spec, policy, tasks, key=("package",), grader=spec.grader()).episodes
    rewards = [0.0, 1.0, *(value for episode in episodes for value in _step_rewards(spec, episode))]
    return float(floor(min(rewards))), float(ceil(max(rewards)))


def _step_rewards(spec: EnvironmentSpec, episode: Episode) -> list[float]:
    """The rewards that a server sends: the environment's own, or else the grader's with the last step."""
    own = [turn.env_reward for turn in episode.turns if turn.env_reward is not None]
    if own:
        return own
    if episode.reward is None or episode.reward.value is None:
        told = episode.failure.message if episode.failure else episode.reward.error if episode.reward else None
        raise ConfigError(f"{spec.name} cannot be packaged: an episode has ended and has no reward: {told}")
    return [episode.reward.value]
