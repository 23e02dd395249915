"""An OpenEnv server for any environment: WebSocket sessions, and pages that describe it.

A step is one ``json.loads``, one environment step and one ``json.dumps``: validation models on that path would cost more than
the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from random import SystemRandom
from threading import Semaphore
from typing import Any, cast

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gradus.core import Action, Environment, EnvironmentSpec, Observation, StopReason, Task
from gradus.core.values import Json
from gradus.core.waiting import blocking
from gradus.interop import servers
from gradus.interop.openenv.client import WireError, dumps, loads, observation_data
from gradus.rollouts.grading import grade_episodes
from gradus.rollouts.under_way import UnderWay
from gradus.version import __version__

_MAX_MESSAGE = 4 * 2**20  # bytes; an answer of a language model is far below
_STARTS = 2**20  # training tasks among which a reset without a seed draws
# Tools are named by a reset and called by a step, so the Model Context Protocol finds none. The code is JSON-RPC's.
_NO_MCP = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "tools are called by a step of /ws"}}

_DESCRIPTION = "A policy's answer, as a language model writes it. A line of JSON calls a tool, if a reset named tools."
_ACTION = {
    "title": "TextAction",
    "type": "object",
    "properties": {"text": {"type": "string", "description": _DESCRIPTION}},
    "required": ["text"],
}


def create_app(spec: EnvironmentSpec, *, sessions: int = 256, hosts: Collection[str] | None = None) -> Starlette:
    """The ASGI application: ``/ws``, and ``/schema``, ``/metadata``, ``/health`` and what ``openenv validate`` looks for.

    ``sessions`` episodes may run at once. ``hosts``: names that Host and Origin may have, None for any.
    """
    places = SessionSlots(sessions)

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        with closing(EnvironmentSession(spec, places)) as session:
            await _serve(socket, session, threads=spec.stepping.threads)

    pages: dict[str, Json] = {
        "/schema": {"action": _action(spec), "observation": {"type": "object"}, "state": {"type": "object"}},
        "/metadata": {"name": spec.name, "description": spec.summary, "version": __version__},
        "/health": {"status": "healthy"},
    }
    answered = {"get": {"responses": {"200": {"description": "answered"}}}}
    pages["/openapi.json"] = {  # `openenv validate --url` looks for it
        "openapi": "3.1.0",
        "info": {"title": f"Gradus environment {spec.name}", "version": "1.0.0"},
        "paths": dict.fromkeys(pages, answered),
    }
    routes = [_page(path, value) for path, value in pages.items()]
    routes.append(_page("/mcp", _NO_MCP, method="POST"))
    return Starlette(
        routes=[WebSocketRoute("/ws", serve), *routes], middleware=[Middleware(servers.Guard, hosts=hosts)]
    )


def _action(spec: EnvironmentSpec) -> Json:
    """Returns the JSON schema of an action: a text, or what the environment's ``action_schema`` says."""
    with closing(blocking(spec.make())) as environment:
        typed = getattr(environment, "action_schema", None)
    return _ACTION if typed is None else {"title": "Action", "anyOf": [dict(typed), _ACTION]}


def server_config(app: Starlette) -> uvicorn.Config:
    """Says how uvicorn should serve it: without compression of messages, which costs more than it saves here.

    Pings find clients that vanished without a word; their sessions are freed within 40 seconds.
    """
    pings = {"ws_ping_interval": 20.0, "ws_ping_timeout": 20.0}
    sizes = {"ws_per_message_deflate": False, "ws_max_size": _MAX_MESSAGE}
    return servers.server_config(app, ws="auto", **pings, **sizes)


async def _serve(socket: WebSocket, session: EnvironmentSession, *, threads: bool) -> None:
    """Answer one client until it leaves. ``threads``: an environment that waits or computes long leaves the event loop."""
    # Texts and bytes are both taken; a client that sends neither gets an error and no silence.
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        raw = message.get("text") or message.get("bytes") or ""
        reply = await anyio.to_thread.run_sync(session.handle, raw) if threads else session.handle(raw)
        if reply is None:
            await socket.close()
            return
        try:
            await socket.send_text(reply)
        except WebSocketDisconnect:  # the client went away while its answer was made
            return


def _page(path: str, value: Json, *, method: str = "GET") -> Route:
    """A route whose answer never changes."""
    body = dumps(value)

    def page(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return Route(path, page, methods=[method])


class SessionSlots:
    """Room for ``capacity`` episodes at once. A session takes a place at its first reset and leaves it when it closes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = Semaphore(capacity)  # connections may be handled in threads
        self.leave = self._free.release

    def take(self) -> None:
        """Take a place. Raises WireError if all are taken; the client may ask again on the same connection."""
        if not self._free.acquire(blocking=False):
            raise WireError(
                "CAPACITY_REACHED",
                f"all {self._capacity} sessions are in use; close one, try again, or start the server with more (--sessions)",
            )


class EnvironmentSession:
    """One environment behind one connection. Not safe for two threads at once; a connection sends one message at a time.

    Every reset makes an environment, as every episode of a rollout does: nothing of the last episode is left in its tools or in the class
    itself, and a connection that only looks costs nothing. An action that does not fit is answered with an error and the episode goes on; an
    environment that raises ends its episode and nothing else. What it gives is checked and made plain as in a rollout.

    An episode ends after ``spec.max_turns`` steps at the latest. If the environment gave no reward of its own by then, the last step brings
    what the default grader says of the episode.
    """

    def __init__(self, spec: EnvironmentSpec, places: SessionSlots) -> None:
        self._spec = spec
        self._places = places
        self._environment: Environment | None = None
        self._row: UnderWay | None = None  # the episode, if one has begun and not ended
        self._episode_id: str | None = None
        self._step_count = 0
        self._acts: Mapping[str, Callable[[Json], Json]] = {
            "reset": self.reset,
            "step": self.step,
            "state": lambda _: self.state,
        }

    def handle(self, raw: str | bytes) -> str | None:
        """Answer one message; None means that the client said goodbye."""
        try:
            message = loads(raw)
            kind = message.get("type")
            if kind == "close":
                return None
            if not isinstance(kind, str) or kind not in self._acts:
                expected = f"{', '.join(self._acts)} or close"
                raise WireError("UNKNOWN_TYPE", f"unknown message type {kind!r}; expected {expected}")
            data: Any = message.get("data")
            if data is not None and not isinstance(data, dict):
                raise WireError("VALIDATION_ERROR", f"data must be an object, got {type(data).__name__}")
            answer = self._acts[kind](cast(Json, data or {}))
            return dumps({"type": "state" if kind == "state" else "observation", "data": answer})
        except WireError as error:
            failure = error
        except Exception as error:
            failure = WireError("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
        return dumps({"type": "error", "data": {"message": failure.message, "code": failure.code}})

    def reset(self, data: Json) -> Json:
        """Begin an episode: of the client's seed, or a training task by chance.

        Returns the first observation with the system prompt and the schemas of the tools.
        """
        options = dict(data)
        seed = options.pop("seed", None)
        episode_id = options.pop("episode_id", None)
        # bool is an int in Python, and true is not a seed.
        if seed is not None and (type(seed) is not int or seed < 0):
            raise WireError("VALIDATION_ERROR", f"seed must be a non-negative integer or null, got {seed!r}")
        if not isinstance(episode_id, str | None):
            raise WireError("VALIDATION_ERROR", f"episode_id must be a string or null, got {episode_id!r:.60}")
        if seed is None:  # a training task that no two clients share, but by chance
            task = self._spec.train_task(SystemRandom().randrange(_STARTS))
        else:
            task = Task(environment=self._spec.name, seed=seed)
        task = replace(task, options={**task.options, **options})
        environment = self._renew()
        try:
            result = environment.reset(seed=task.seed, **task.options)
        except (ValueError, TypeError) as error:
            raise WireError("VALIDATION_ERROR", f"{self._spec.name} cannot reset with {data}: {error}") from error
        row = UnderWay(spec=self._spec, task=task, group=0, member=0, environment=environment)
        row.opened(result, None)
        _refuse_failed(row)
        self._row = row
        self._episode_id = episode_id
        self._step_count = 0
        return observation_data(row.observation, row.system_prompt, row.tools)

    def _renew(self) -> Environment:
        """End the last episode and make the environment of the next. The place is kept, or taken if there was none."""
        former = self._environment
        self._environment = self._row = None
        # Taken before the environment is made, as that may be what fills the machine.
        if former is None:
            self._places.take()
        try:
            if former is not None:
                former.close()
            self._environment = blocking(self._spec.make())
        except Exception as error:
            self._places.leave()
            raise WireError("FACTORY_ERROR", f"{self._spec.name} could not be made: {error}") from error
        return self._environment

    def step(self, action: Json) -> Json:
        """Take one action, ``{"text": ...}`` or the fields that the environment's ``step_typed`` takes.

        Raises WireError if the episode ends with it and has no reward.
        """
        row = self._row
        if row is None:
            raise WireError("SESSION_ERROR", "no episode is running; send a reset first")
        self._row = None  # an environment that raises ends its episode
        text = action.get("text")
        if isinstance(text, str):
            result = row.environment.step(text)
            answer = text
        else:
            try:
                result = _step_typed(row.environment, action)
            except (
                ValueError,
                TypeError,
            ) as error:  # fields that do not fit: the client is told so, and the episode goes on
                self._row = row
                raise WireError("VALIDATION_ERROR", str(error)) from error
            answer = dumps(dict(action))
        self._step_count += 1
        row.take(Action(text=answer), result, None, self._spec.max_turns)
        _refuse_failed(row)
        if row.stop is None:
            self._row = row
        observation = row.observation
        # A limit of rollouts alone would let a client play on for ever.
        if row.stop is StopReason.TURN_LIMIT:
            observation = replace(observation, truncated=True)
        # Environments that pay by step have paid; the others are graded now, while their outcome is there.
        rewarded = any(turn.env_reward is not None for turn in row.turns)
        if row.stop is not None and not rewarded:
            observation = replace(observation, reward=self._reward(row))
        return observation_data(observation)

    def _reward(self, row: UnderWay) -> float:
        """Returns the default grader's reward of the episode that has ended."""
        (episode,) = grade_episodes(self._spec, [row.closed("client")], self._spec.grader())
        reward = episode.reward
        if reward is not None and reward.value is not None:
            return reward.value
        reason = episode.failure.message if episode.failure else reward and reward.error
        grader = self._spec.default_grader
        raise WireError(
            "EXECUTION_ERROR",
            f"the episode has ended and has no reward: the environment gave none, and neither does grader {grader!r}: {reason}",
        )

    @property
    def state(self) -> Json:
        """What a client may know of the episode: its name for it, and the number of its steps."""
        return {"episode_id": self._episode_id, "step_count": self._step_count}

    def close(self) -> None:
        """Free the environment and its place."""
        environment = self._environment
        self._environment = self._row = None
        if environment is not None:
            # Its place is free once it is gone: what it holds may be what fills the machine.
            try:
                environment.close()
            finally:
                self._places.leave()


def _refuse_failed(row: UnderWay) -> None:
    if row.failure is not None:
        raise WireError("EXECUTION_ERROR", f"{row.failure.type}: {row.failure.message}")


def _step_typed(environment: Environment, action: Json) -> Observation:
    step: Callable[[Json], Observation] | None = getattr(environment, "step_typed", None)
    fields = dict(action)
    fields.pop("metadata", None)  # stock clients send it, empty
    if step is None or not fields:
        raise ValueError(f'expected {{"text": "..."}} or the fields of GET /schema, got {sorted(action)}')
    return step(fields)
