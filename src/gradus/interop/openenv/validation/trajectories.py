"""Stored episodes of an OpenEnv package, its oracle and its canaries, and playing them on its server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, EnvironmentFault, Observation
from gradus.interop.openenv.remote_session import OpenEnvClient, Server

Json = dict[str, Any]
Execute = Callable[[Sequence[str]], str]  # runs a command beside the server and returns what it printed


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What is sent: arguments of the reset, then actions. The form of OpenEnv's runtime plans is read too."""

    reset: Mapping[str, Any] = field(default_factory=dict[str, Any])
    actions: Sequence[Mapping[str, Any]] = ()

    @property
    def seed(self) -> int | None:
        seed = self.reset.get("seed")
        return seed if isinstance(seed, int) else None


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came back, first of the reset. ``last``: the verifier's last word, None if there was none."""

    observations: Sequence[Observation]
    state: Mapping[str, Any]

    @property
    def rewards(self) -> list[float]:
        return [each.reward for each in self.observations if each.reward is not None]

    @property
    def last(self) -> float | None:
        return self.rewards[-1] if self.rewards else None

    @property
    def best(self) -> float | None:
        return max(self.rewards) if self.rewards else None

    def transcript(self) -> list[tuple[str, Mapping[str, Any], float | None, bool]]:
        """All of it, to compare with another time."""
        return [(o.text, o.data, o.reward, o.terminated or o.truncated) for o in self.observations]


def read_trajectories(path: Path) -> list[Trajectory]:
    """From a JSON file (one, or a list), a JSON-lines file, or a folder of such files."""
    if path.is_dir():
        return [
            each
            for file in sorted(path.iterdir())
            if file.suffix in (".json", ".jsonl")
            for each in read_trajectories(file)
        ]
    text = path.read_text(encoding="utf-8")
    try:
        values = (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if path.suffix == ".jsonl"
            else json.loads(text)
        )
    except ValueError as error:
        raise ConfigError(f"expected JSON in {path}, got {error}") from None
    return _trajectories(values, str(path))


def _trajectories(values: Any, where: str) -> list[Trajectory]:
    read: list[Trajectory] = []
    for each in values if isinstance(values, list) else [values]:
        if not isinstance(each, Mapping) or not isinstance(each.get("actions", []), list):
            raise ConfigError(f'expected {{"reset": {{...}}, "actions": [...]}} in {where}, got {str(each)[:80]}')
        given = dict(each.get("reset", {}))
        reset = {**given.pop("options", {}), **given}
        reset |= {"injected_state": each["injected_state"]} if "injected_state" in each else {}
        read.append(Trajectory(reset=reset, actions=each.get("actions", [])))
    return read


def read_oracle(root: Path, form: str, location: str, execute: Execute | None) -> list[Trajectory]:
    """How the package shows the full reward: a state to inject, stored actions, or a script that prints actions as JSON.

    What a script prints is replayed as well: a reward that it only claims counts for nothing.
    """
    path = (root / location).resolve()
    if not path.is_relative_to(root.resolve()) or not path.exists():
        raise ConfigError(f"expected the oracle inside the package, got {location!r}, which is not there")
    if form == "injected_state":
        value = json.loads(path.read_text(encoding="utf-8"))
        stated = isinstance(value, Mapping) and ("injected_state" in value or "actions" in value)
        return _trajectories(value if stated or isinstance(value, list) else {"injected_state": value}, location)
    if path.suffix in (".json", ".jsonl") or path.is_dir():
        return read_trajectories(path)
    if execute is None:
        raise ConfigError("a script as an oracle needs a provider that can run it beside the server")
    starter = "python" if path.suffix == ".py" else "sh"
    printed = execute([starter, location]).strip().splitlines()
    try:
        return _trajectories(json.loads(printed[-1]), location)
    except (ValueError, IndexError):
        raise ConfigError(f"expected the oracle script to print its actions as JSON, got {printed[-1:]}") from None


def replay(server: Server, trajectory: Trajectory) -> Replayed:
    """Play it in a session of its own. Raises EnvironmentFault if the server fails."""
    client = OpenEnvClient(server)
    try:
        observations = [client.reset(**trajectory.reset)]
        for action in trajectory.actions:
            if observations[-1].terminated or observations[-1].truncated:
                break
            observations.append(client.step_typed(action))
        return Replayed(observations=observations, state=dict(client.state))
    finally:
        client.close()


def do_nothing(server: Server, reset: Mapping[str, Any]) -> float | None:
    """The floor: the reward of the state after a reset, or of one empty action if the reset tells none."""
    first = replay(server, Trajectory(reset=reset))
    if first.last is not None:
        return first.last
    try:
        return replay(server, Trajectory(reset=reset, actions=[_empty(server.action)])).last
    except EnvironmentFault:
        return None  # nothing empty is a legal action here


def _empty(schema: Mapping[str, Any]) -> Json:
    """The smallest action that the schema lets through: empty texts, zeros, first choices."""
    choice = next(iter(schema.get("anyOf", ())), schema)
    required = choice.get("required") or [n for n in choice.get("properties", {}) if n != "metadata"]
    return {name: _least(choice["properties"].get(name, {})) for name in required}


def _least(schema: Mapping[str, Any]) -> Any:
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type") or next((each.get("type") for each in schema.get("anyOf", ())), "string")
    return {
        "integer": schema.get("minimum", 0),
        "number": schema.get("minimum", 0.0),
        "boolean": False,
        "array": [],
        "object": {},
    }.get(kind, "")
