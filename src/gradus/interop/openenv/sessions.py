"""One client's episode on a server, and how many of them there may be at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import SystemRandom
from threading import Lock
from typing import Any

from gradus.core import Environment, EnvironmentSpec, Observation, Task
from gradus.core.values import whole_characters
from gradus.core.waiting import blocking
from gradus.interop.openenv.wire import WireError, dumps, loads, observation_data, reset_arguments
from gradus.rollouts.grading import grade_episodes
from gradus.rollouts.received import checked_prompt, plain, received
from gradus.rollouts.stepping import again_after_faults
from gradus.rollouts.under_way import stepped_episode

_STARTS = 2**20  # where a server may begin among the training tasks


class SessionSlots:
    """Room for ``capacity`` episodes at once. A session takes a place at its first reset and leaves it when it closes.

    Numbers of tasks for clients that name none come from here too: one after another for all of a server's clients, from a random one on,
    so that no two clients and no two servers go through the same tasks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken = 0
        self._tasks = count(SystemRandom().randrange(_STARTS))
        self._lock = Lock()  # connections may be handled in threads

    def take(self) -> None:
        """Take a place. Raises WireError if all are taken; the client may ask again on the same connection."""
        with self._lock:
            if self.taken < self.capacity:
                self.taken += 1
                return
        raise WireError(
            "CAPACITY_REACHED",
            f"all {self.capacity} sessions are in use; close one, try again, or start the server with more (--sessions)",
            {"active_sessions": self.capacity, "max_sessions": self.capacity},
        )

    def next_task(self) -> int:
        """The number of the next task."""
        return next(self._tasks)

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.taken -= 1


class Session:
    """One environment behind one connection. Not safe for two threads at once; a connection sends one message at a time.

    Every reset makes an environment, as every episode of a rollout does: nothing of the last episode is left in its tools or in the class
    itself, and a connection that only looks costs nothing. An action that does not fit is
    answered with an error and the episode goes on; an environment that raises ends its episode and nothing else. What it gives is checked and made plain as in a rollout, and a temporary fault is tried again.

    An episode ends after ``spec.max_turns`` steps at the latest. If the environment gave no reward of its own by then, the last step brings
    what the default grader says of the episode.
    """

    def __init__(self, spec: EnvironmentSpec, places: SessionSlots) -> None:
        self._spec = spec
        self._places = places
        self._environment: Environment | None = None
        self._began: Mapping[str, Any] = {}  # the reset that begins this episode again
        self._task, self._first = Task(environment="", seed=0), Observation(text="")
        self._taken: list[tuple[Mapping[str, Any], Observation]] = []  # actions, and what was seen after each
        self._open = False  # an episode has begun and not ended

    def handle(self, raw: str | bytes) -> str | None:
        """Answer one message; None means that the client said goodbye."""
        try:
            message = loads(raw)
            kind = message.get("type")
            if kind == "close":
                return None
            acts = {"reset": self.reset, "step": self.step, "state": lambda _: self.state}
            act = acts.get(kind) if isinstance(kind, str) else None
            if act is None:
                raise WireError("UNKNOWN_TYPE", f"unknown message type {kind!r}; expected {', '.join(acts)} or close")
            data = {} if message.get("data") is None else message["data"]
            if not isinstance(data, dict):
                raise WireError("VALIDATION_ERROR", f"data must be an object, got {type(data).__name__}")
            return dumps({"type": "state" if kind == "state" else "observation", "data": act(data)})
        except Exception as error:
            told = error if isinstance(error, WireError) else None
            told = told or WireError("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
            return dumps(
                {"type": "error", "data": {"message": told.message, "code": told.code, **(told.details or {})}}
            )

    def reset(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Begin an episode. Returns the first observation with the system prompt and the schemas of the tools.

        ``condition`` names one of the environment's conditions and brings its reset options. Without a seed it is the next training task,
        or the next task of the condition.
        """
        seed, episode_id, options = reset_arguments(data)
        task = self._asked(options.pop("condition", None), seed)
        task = replace(task, options={**task.options, **options})
        began = {**task.options, "seed": task.seed}
        environment = self._renew()
        call = partial(environment.reset, episode_id=episode_id, **began)
        try:
            given = again_after_faults(call, self._spec.stepping.retries)
        except (ValueError, TypeError) as error:
            raise WireError("VALIDATION_ERROR", f"{self._spec.name} cannot reset with {data}: {error}") from error
        observation = received(given, "reset")
        prompt = checked_prompt(environment.system_prompt)
        tools = plain(tuple(getattr(environment, "tools", ())), "tools")
        self._open, self._began = True, began
        self._task, self._first, self._taken = task, observation, []
        return observation_data(observation, prompt, tools)

    def _asked(self, condition: Any, seed: int | None) -> Task:
        """Returns the task that a reset asks for, without the client's own options."""
        name = self._spec.name
        if condition is None:
            return (
                Task(environment=name, seed=seed)
                if seed is not None
                else self._spec.train_task(self._places.next_task())
            )
        if condition not in self._spec.conditions:
            known = ", ".join(self._spec.conditions)
            raise WireError("VALIDATION_ERROR", f"unknown condition {condition!r}; expected one of {known}")
        chosen = self._spec.conditions[condition]
        seed = chosen.seeds[self._places.next_task() % len(chosen.seeds)] if seed is None else seed
        return Task(environment=name, seed=seed, condition=condition, options=chosen.options)

    def _renew(self) -> Environment:
        """End the last episode and make the environment of the next. The place is kept, or taken if there was none."""
        former, self._environment = self._environment, None
        self._open, self._began = False, {}
        if former is None:
            self._places.take()
        try:
            if former is not None:
                former.close()
            self._environment = made = blocking(self._spec.make())
        except Exception as error:
            self._places.leave()
            raise WireError("FACTORY_ERROR", f"{self._spec.name} could not be made: {error}") from error
        return made

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take one action, ``{"text": ...}`` or the environment's own fields.

        Raises WireError if the episode ends with it and has no reward.
        """
        environment = self._environment
        if environment is None or not self._open:
            raise WireError("SESSION_ERROR", "no episode is running; send a reset first")
        if isinstance(
            text := action.get("text"), str
        ):  # half of a character would come back in what the environment says of it
            action = {**action, "text": whole_characters(text)}
        try:
            given = again_after_faults(partial(_take, environment, action), self._spec.stepping.retries)
            observation = received(given, "step", plain_data=getattr(environment, "plain_data", False))
        except WireError:
            raise
        except Exception:
            self._open = False
            raise
        self._taken.append((action, observation))
        if not observation.terminated and len(self._taken) >= self._spec.max_turns:
            observation = replace(observation, truncated=True)
        self._open = not (observation.terminated or observation.truncated)
        if self._open or any(after.reward is not None for _, after in self._taken):
            return observation_data(observation)
        return observation_data(replace(observation, reward=self._graded(environment)))

    def _graded(self, environment: Environment) -> float:
        """Returns the default grader's reward of the episode that has ended."""
        taken = [(_as_text(action), after) for action, after in self._taken]
        episode = stepped_episode(self._spec, environment, self._task, self._first, taken)
        (episode,) = grade_episodes(self._spec, [episode], self._spec.grader())
        if episode.reward is not None and episode.reward.value is not None:
            return episode.reward.value
        missing = episode.failure.message if episode.failure else episode.reward.error if episode.reward else None
        raise WireError(
            "EXECUTION_ERROR",
            f"the episode has ended and has no reward: the environment gave none, and neither does grader {self._spec.default_grader!r}: {missing}",
        )

    @property
    def state(self) -> Mapping[str, Any]:
        """Public state, and the ``reset`` that begins this episode again; both are empty before the first one."""
        if self._environment is None:
            return {"episode_id": None, "step_count": 0}
        return plain({**self._environment.state, "reset": self._began}, "state")

    def close(self) -> None:
        """Free the environment and its place."""
        environment, self._environment, self._open = self._environment, None, False
        if environment is not None:
            self._places.leave()
            environment.close()


def _as_text(action: Mapping[str, Any]) -> str:
    """An action as a grader reads it."""
    text = action.get("text")
    return text if isinstance(text, str) else dumps(dict(action))


def _take(environment: Environment, action: Mapping[str, Any]) -> Observation:
    """Step with a text or with a typed action. A typed action that does not fit is the client's error, not the environment's."""
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
