"""One client's episode on a server, and how many of them there may be at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from gradus.core import Environment, EnvironmentSpec, Observation
from gradus.core.waiting import blocking
from gradus.interop.openenv.wire import (
    WireError,
    error_message,
    loads,
    observation_message,
    reset_arguments,
    state_message,
)


class SessionSlots:
    """Room for ``capacity`` episodes at once. A session takes a place at its first reset and leaves it when it closes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken = 0
        self._lock = Lock()  # connections may be handled in threads

    def take(self) -> None:
        """Take a place, or say that there is none; the client may ask again on the same connection."""
        with self._lock:
            if self.taken < self.capacity:
                self.taken += 1
                return
        raise WireError(
            "CAPACITY_REACHED",
            f"all {self.capacity} sessions are in use; close one, try again, or start the server with more (--sessions)",
            {"active_sessions": self.capacity, "max_sessions": self.capacity},
        )

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.taken -= 1


class Session:
    """One environment behind one connection. Not safe for two threads at once; a connection sends one message at a time.

    An environment is made at the first reset, so a connection that only looks costs nothing. An action that does not fit is
    answered with an error and the episode goes on; an environment that raises ends its episode and nothing else.
    """

    def __init__(self, spec: EnvironmentSpec, places: SessionSlots) -> None:
        self._spec = spec
        self._places = places
        self._environment: Environment | None = None
        self._open = False  # an episode has begun and not ended

    def handle(self, raw: str | bytes) -> str | None:
        """Answer one message; None means that the client said goodbye."""
        try:
            message = loads(raw)
            kind = message.get("type")
            if kind == "close":
                return None
            act = _ACTS.get(kind) if isinstance(kind, str) else None
            if act is None:
                raise WireError("UNKNOWN_TYPE", f"unknown message type {kind!r}; expected {', '.join(_ACTS)} or close")
            data = message.get("data")
            if data is None:
                data = {}
            if not isinstance(data, dict):
                raise WireError("VALIDATION_ERROR", f"data must be an object, got {type(data).__name__}")
            return act(self, data)
        except WireError as error:
            return error_message(error)
        except Exception as error:
            return error_message(WireError("EXECUTION_ERROR", f"{type(error).__name__}: {error}"))

    def reset(self, data: Mapping[str, Any]) -> tuple[Observation, str]:
        """Begin an episode: the first observation and the system prompt.

        ``condition`` names one of the environment's conditions and brings its reset options.
        """
        seed, episode_id, options = reset_arguments(data)
        condition = options.pop("condition", None)
        if condition is not None:
            if condition not in self._spec.conditions:
                known = ", ".join(self._spec.conditions)
                raise WireError("VALIDATION_ERROR", f"unknown condition {condition!r}; expected one of {known}")
            options = {**self._spec.conditions[condition].options, **options}
        if self._environment is None:
            self._places.take()
            try:
                self._environment = blocking(self._spec.make())
            except Exception as error:
                self._places.leave()
                raise WireError("FACTORY_ERROR", f"{self._spec.name} could not be made: {error}") from error
        self._open = False
        try:
            observation = self._environment.reset(seed=seed, episode_id=episode_id, **options)
        except (ValueError, TypeError) as error:
            raise WireError("VALIDATION_ERROR", f"{self._spec.name} cannot reset with {data}: {error}") from error
        self._open = True
        return observation, self._environment.system_prompt

    def step(self, action: Mapping[str, Any]) -> Observation:
        """Take one action, ``{"text": ...}`` or the environment's own fields."""
        environment = self._environment
        if environment is None or not self._open:
            raise WireError("SESSION_ERROR", "no episode is running; send a reset first")
        try:
            observation = _take(environment, action)
        except WireError:
            raise
        except Exception:
            self._open = False
            raise
        self._open = not (observation.terminated or observation.truncated)
        return observation

    @property
    def state(self) -> Mapping[str, Any]:
        """Public state; before the first reset there is no episode and no step."""
        return self._environment.state if self._environment else {"episode_id": None, "step_count": 0}

    def close(self) -> None:
        """Free the environment and its place."""
        environment, self._environment, self._open = self._environment, None, False
        if environment is not None:
            self._places.leave()
            environment.close()


def _take(environment: Environment, action: Mapping[str, Any]) -> Observation:
    """Step with a text or a typed action. A typed action that does not fit is the client's error, not the environment's."""
    text = action.get("text")
    if isinstance(text, str):
        return environment.step(text)
    typed: Callable[[Mapping[str, Any]], Observation] | None = getattr(environment, "step_typed", None)
    # A stock client that sends a typed action sends OpenEnv's empty metadata field along.
    fields = {name: value for name, value in action.items() if name != "metadata"}
    if typed is None or not fields:
        known = '{"text": "..."}' + (" or the typed fields that GET /schema shows" if typed else "")
        raise WireError("VALIDATION_ERROR", f"expected an action {known}, got fields {sorted(action)}")
    try:
        return typed(fields)
    except (ValueError, TypeError) as error:
        raise WireError("VALIDATION_ERROR", str(error)) from error


def _reset(session: Session, data: Mapping[str, Any]) -> str:
    observation, system_prompt = session.reset(data)
    return observation_message(observation, system_prompt)


def _step(session: Session, data: Mapping[str, Any]) -> str:
    return observation_message(session.step(data))


def _state(session: Session, data: Mapping[str, Any]) -> str:
    return state_message(session.state)


_ACTS: dict[str, Callable[[Session, Mapping[str, Any]], str]] = {"reset": _reset, "step": _step, "state": _state}
