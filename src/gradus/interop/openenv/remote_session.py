"""One session of an OpenEnv server, with texts in and out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gradus.core import EnvironmentFault, Observation
from gradus.core.servers import is_loopback
from gradus.interop.openenv.wire import FIELDS, WireError, dumps, loads

TURNS = 64
_CALLS = 'A line of your answer calls a tool, as in {"name": "NAME", "arguments": {"KEY": "VALUE"}}. The tools: '
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

    @property
    def system_prompt(self) -> str:
        """Returns the server's ``system_prompt``, or what it says of itself and of its actions; then its tools, if it has some."""
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
        if tools := fields.get("tools"):
            self._system_prompt += f"\n{_CALLS}{dumps(tools)}"
        return observation

    def step(self, action: str) -> Observation:
        """Send an answer. One that is not a JSON object is invalid and not sent, if the server wants several fields."""
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
            return _observation(data), data["observation"]
        except WireError as error:
            if message["type"] == "step" and error.code == "VALIDATION_ERROR":
                text = f"The action was refused: {error.message}"
                return Observation(text=text, action_valid=False, action_error=error.message), {}
            raise EnvironmentFault(f"{self._server.socket}: {error}") from error

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


def _observation(answer: Mapping[str, Any]) -> Observation:
    """Reads what a server answered to a reset or a step. Raises WireError if it is something else."""
    fields, reward, done = answer.get("observation"), answer.get("reward"), bool(answer.get("done", False))
    if not isinstance(fields, Mapping):
        raise WireError("VALIDATION_ERROR", f"expected an observation object, the server sent {str(answer)[:200]}")
    if reward is not None and not isinstance(reward, int | float):
        raise WireError("VALIDATION_ERROR", f"expected a number as reward, the server sent {reward!r}")
    text = fields.get("text")
    data = {name: value for name, value in fields.items() if name not in FIELDS}
    truncated = bool(fields.get("truncated", False))
    return Observation(
        text=text if isinstance(text, str) else dumps(data),
        data=data,
        reward=None if reward is None else float(reward),
        terminated=bool(fields.get("terminated", done and not truncated)),
        truncated=truncated,
        restart=bool(fields.get("restart", False)),
        action_valid=bool(fields.get("action_valid", True)),
        action_error=fields.get("action_error"),
    )


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
