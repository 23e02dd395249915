"""One session of an OpenEnv server, with texts in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gradus.core import EnvironmentFault, Message, Observation, ToolCall
from gradus.core.calls import call_spans, none_carried_out, write_calls
from gradus.core.servers import is_loopback
from gradus.interop.openenv.wire import (
    FIELDS,
    TOOL_FIELDS,
    WireError,
    dumps,
    loads,
    read_messages,
    read_observation,
)

TURNS = 64
TIMEOUT = 60.0  # seconds for one answer
_MAX_MESSAGE = 100 * 2**20  # bytes, OpenEnv's own default for clients


@dataclass(frozen=True, kw_only=True)
class Server:
    """The address of a server and what it said of itself. ``field`` None: an answer is read as a JSON object of action fields."""

    socket: str
    name: str
    description: str
    action: Mapping[str, Any]
    field: str | None
    turns: int = TURNS


class OpenEnvClient:
    """The text layer over one session of a server; connects at the first reset. Satisfies ``core.Environment``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: ClientConnection | None = None
        self._stack = ExitStack()  # holds the connection, whose context manager it is
        self._system_prompt = ""
        self._tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Schemas of the tools that the server told with the reset."""
        return self._tools

    @property
    def system_prompt(self) -> str:
        """Returns the server's ``system_prompt``, or what it says of itself and of its actions."""
        return self._system_prompt

    @property
    def state(self) -> Mapping[str, Any]:
        """The server's public state."""
        try:
            return self._ask({"type": "state"}, "state")
        except WireError as error:
            raise EnvironmentFault(f"{self._server.socket}: {error}") from error

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode on the server."""
        data = {name: value for name, value in (("seed", seed), ("episode_id", episode_id)) if value is not None}
        observation, fields = self._observe({"type": "reset", "data": {**data, **options}})
        prompt = fields.get("system_prompt")
        self._system_prompt = prompt if isinstance(prompt, str) else _described(self._server)
        return observation

    def step(self, action: str | Message) -> Observation:
        """Send an answer, its calls as lines of JSON.

        The server is told nothing of an answer with a call that cannot be read, nor of one that is not a JSON object if it wants several
        fields: both are invalid actions.
        """
        if isinstance(action, Message):
            if any(call.fault == "malformed" for call in action.calls):
                return _unreadable(action)
            seen = self.step("\n".join(filter(None, (action.content, write_calls(action.calls)))))
            calls = _placed(seen.action_calls, action.calls)
            return replace(seen, action_calls=calls, action_spans=call_spans(calls))
        data = self._action(action)
        if data is None:
            return Observation(
                text=f"The answer must be one JSON object with the fields {sorted(properties(self._server.action))}.",
                action_valid=False,
                action_error="not a JSON object",
            )
        return self._observe({"type": "step", "data": data})[0]

    def outcome(self) -> Mapping[str, Any]:
        """Nothing: a server does not tell its hidden truth."""
        return {}

    def probe(self) -> None:
        """Take a session without beginning an episode. Raises WireError if the server has none left."""
        try:
            self._ask({"type": "state"}, "state")
        except WireError as error:
            if error.code == "CAPACITY_REACHED":
                raise

    def close(self) -> None:
        """Say goodbye and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(WebSocketException):
                connection.send(dumps({"type": "close"}))
        self._stack.close()

    def _action(self, text: str) -> Mapping[str, Any] | None:
        if self._server.field is not None:
            return {self._server.field: text}
        try:
            return loads(text.strip())
        except WireError:
            return None

    def _observe(self, message: Mapping[str, Any]) -> tuple[Observation, Mapping[str, Any]]:
        try:
            data = self._ask(message, "observation")
            fields, reward, done = read_observation(data)
        except WireError as error:
            if message["type"] == "step" and error.code == "VALIDATION_ERROR":
                text = f"The action was refused: {error.message}"
                return Observation(text=text, action_valid=False, action_error=error.message), {}
            raise EnvironmentFault(f"{self._server.socket}: {error}") from error
        if message["type"] == "reset":
            self._tools = _schemas(fields.get("tools"))
        return _observation(fields, reward, done, with_tools=bool(self._tools)), fields

    def _ask(self, message: Mapping[str, Any], expected: str) -> Mapping[str, Any]:
        connection = self._connection or self._connect()
        try:
            # A server that refuses says why and closes; what it said can still be read.
            with suppress(ConnectionClosed):
                connection.send(dumps(message))
            answer = loads(connection.recv(TIMEOUT))
        except (ConnectionClosed, TimeoutError) as error:
            self.close()
            raise EnvironmentFault(f"{self._server.socket} stopped answering: {error or 'timed out'}") from error
        data = answer.get("data")
        if not isinstance(data, Mapping):
            raise EnvironmentFault(f"{self._server.socket} answered without data: {str(answer)[:200]}")
        if answer.get("type") == "error":
            raise WireError(str(data.get("code", "UNKNOWN")), str(data.get("message", "no reason given")), dict(data))
        if answer.get("type") != expected:
            raise EnvironmentFault(f"{self._server.socket} answered {answer.get('type')!r}, expected {expected!r}")
        return data

    def _connect(self) -> ClientConnection:
        extra: dict[str, Any] = {"proxy": None} if is_loopback(self._server.socket) else {}
        try:
            connection = self._stack.enter_context(
                connect(self._server.socket, open_timeout=10, compression=None, max_size=_MAX_MESSAGE, **extra)
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EnvironmentFault(f"no OpenEnv server answers at {self._server.socket}: {error}") from error
        self._connection = connection
        return connection


def _observation(fields: Mapping[str, Any], reward: float | None, done: bool, *, with_tools: bool) -> Observation:
    text = fields.get("text")
    messages, calls = read_messages(fields) if with_tools else ((), ())
    ours = (*FIELDS, *(TOOL_FIELDS if with_tools else ()))
    data = {name: value for name, value in fields.items() if name not in ours}
    truncated = bool(fields.get("truncated", False))
    return Observation(
        text=text if isinstance(text, str) else dumps(data),
        messages=messages,
        data=data,
        action_calls=calls,
        action_spans=call_spans(calls),
        reward=reward,
        terminated=bool(fields.get("terminated", done and not truncated)),
        truncated=truncated,
        restart=bool(fields.get("restart", False)),
        action_valid=bool(fields.get("action_valid", True)),
        action_error=fields.get("action_error"),
    )


def _schemas(given: Any) -> tuple[Mapping[str, Any], ...]:
    """The server's tools, if it sent such as ours does: ``{"type": "function", "function": {...}}``."""
    listed = given if isinstance(given, list) else []
    known = [each for each in listed if isinstance(each, Mapping) and isinstance(each.get("function"), Mapping)]
    return tuple(known) if len(known) == len(listed) else ()


def _placed(told: Sequence[ToolCall], own: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls that the server told, at their places in the answer as the policy wrote it."""
    if len(told) != len(own):
        return tuple(told)
    return tuple(replace(one, start=ours.start, end=ours.end) for one, ours in zip(told, own, strict=True))


def _unreadable(answer: Message) -> Observation:
    calls, told = none_carried_out(answer.calls)
    error = next(call.error for call in calls if call.fault == "malformed")
    said = (Message(role="user", content=told),)
    return Observation(text=told, messages=said, action_calls=calls, action_valid=False, action_error=error)


def _described(server: Server) -> str:
    how = (
        f"Your whole answer is sent as the action's {server.field!r}."
        if server.field is not None
        else f"Answer with one JSON object: {dumps(dict(server.action))}"
    )
    return f"{server.name}. {server.description}\n{how}"


def properties(action: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of an action by its schema."""
    return {name: kind for name, kind in action.get("properties", {}).items() if name != "metadata"}
