"""Any OpenEnv server as an environment: ``openenv:ws://host:port``, also ``wss``, ``http`` and ``https``; and the words of its wire.

What a query after the address may say: ``turns`` (most turns of an episode, default 64) and ``sessions`` (episodes that the server runs
at once, default 1).

The protocol is that of openenv 0.10. A request is ``{"type": "reset" | "step" | "state" | "close", "data": {...}}``; an answer
``{"type": "observation" | "state" | "error", "data": {...}}``. All that matters is an observation field, because servers may drop an
observation's ``metadata``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gradus.core import Condition, ConfigError, EnvironmentFault, EnvironmentSpec, Observation, Stepping, Task
from gradus.core.frozen_record import frozen_record
from gradus.core.printing import beginning
from gradus.core.servers import is_loopback
from gradus.core.values import Json, JsonDict
from gradus.environments.options import known_options
from gradus.interop.suites.games import return_grader
from gradus.policies.scripted import constant_policy

FIELDS = ("text", "system_prompt", "tools", "terminated", "truncated", "restart", "action_valid", "action_error")
"""Observation fields that every environment has on the wire; the environment's own ``data`` stands beside them."""

_LONGEST = 1000  # characters of an error
_dial: Callable[..., AbstractContextManager[ClientConnection]] = connect
dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class WireError(EnvironmentFault):
    """A request that cannot be served. ``code`` is one of OpenEnv's WSErrorCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = beginning(message, _LONGEST)  # what a client sent may come back in it


def loads(raw: str | bytes) -> JsonDict:
    """One message as an object; WireError says what is wrong with it otherwise."""
    try:
        message: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError("INVALID_JSON", f"expected one JSON object, got text that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("VALIDATION_ERROR", f'expected an object {{"type": ...}}, got {type(message).__name__}')
    return cast(JsonDict, message)


def observation_data(
    observation: Observation, system_prompt: str | None = None, tools: Sequence[Json] = ()
) -> JsonDict:
    """Returns the answer to a reset or a step: ``{"observation": {...}, "reward": x, "done": b}``.

    The structured observation stands flat beside :data:`FIELDS`, so that a typed client reads ``observation.vitality``.
    """
    clash = sorted(observation.data.keys() & FIELDS)
    if clash:
        raise WireError("EXECUTION_ERROR", f"the environment's data may not use the field names {clash}")
    # Fields that an observation lacks come with a reset alone.
    fields = {name: getattr(observation, name, None) for name in FIELDS}
    fields |= {"system_prompt": system_prompt, "tools": list(tools), **observation.data}
    done = observation.terminated or observation.truncated
    return {"observation": fields, "reward": observation.reward, "done": done}


_TURNS = 64
_EPISODES = 100  # of the condition
_TRAINING = 1_000_000  # training seeds begin here and never meet those of the condition
_CALLS = 'A line of your answer calls a tool, as in {"name": "NAME", "arguments": {"KEY": "VALUE"}}. The tools: '
_TIMEOUT = 60.0  # seconds for one answer
_MAX_MESSAGE = 100 * 2**20  # bytes, OpenEnv's own default for clients


@frozen_record
class Server:
    """The address of a server and what it said of itself."""

    # The address of its WebSocket.
    socket: str
    name: str
    description: str
    # The JSON schema of an action.
    action: Json
    # The field that takes an answer as it is; None: an answer is read as a JSON object of action fields.
    field: str | None


def load(argument: str | None) -> EnvironmentSpec:
    """The environment behind an address. Its reward is the sum of the rewards that the server gives."""
    name = f"openenv:{argument}"
    address, _, query = (argument or "").partition("?")
    options = known_options(name, query, {"turns": int, "sessions": int})
    server = _describe(address)
    return EnvironmentSpec(
        name=name,
        summary=server.description,
        make=lambda: OpenEnvClient(server),
        graders={"return": return_grader(per_turn=True, needed=True)},
        conditions={"main": Condition(name="main", seeds=range(_EPISODES), summary=f"seeds 0 to {_EPISODES - 1}")},
        train_task=lambda index: Task(environment=name, seed=_TRAINING + index),
        policies={"constant": lambda text: constant_policy(text or "")},
        max_turns=options.get("turns", _TURNS),
        max_sessions=options.get("sessions", 1),
        stepping=Stepping(threads=True),
    )


def _describe(address: str) -> Server:
    """Read the address, and ask the server for its schema and its name."""
    try:
        url = urlsplit(address)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("ws", "http", "wss", "https") or not url.netloc:
        raise ConfigError(f"expected the address of an OpenEnv server, as in ws://localhost:8000, got {address!r}")
    secure = "s" if url.scheme in ("wss", "https") else ""
    place = url.netloc + url.path.rstrip("/").removesuffix("/ws")
    page = f"http{secure}://{place}"
    try:
        with httpx.Client(timeout=_TIMEOUT, trust_env=not is_loopback(page)) as client:
            action = client.get(f"{page}/schema").raise_for_status().json()["action"]
            about = client.get(f"{page}/metadata").raise_for_status().json()
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no OpenEnv server answers at {page} ({type(error).__name__}: {error}); is it running? "
            "`gradus serve rhythm --env` starts one"
        ) from error
    return Server(
        socket=f"ws{secure}://{place}/ws",
        name=str(about.get("name", "environment")),
        description=str(about.get("description", "")),
        action=action,
        field=_text_field(action),
    )


def _text_field(action: Json) -> str | None:
    """The field that a policy's answer goes to: ``text`` if it is taken, else the only field if that is a string."""
    # Servers of Gradus take typed fields or a text; a policy writes text.
    choices = [action, *action.get("anyOf", ())]
    if any("text" in _properties(choice) for choice in choices):
        return "text"
    properties = _properties(action)
    if len(properties) != 1:
        return None
    ((name, kind),) = properties.items()
    return name if kind.get("type") == "string" else None


def _properties(action: Json) -> Json:
    """The fields of an action by its schema."""
    properties = dict(action.get("properties", {}))
    properties.pop("metadata", None)  # every action of OpenEnv has it; a policy has nothing to say there
    return properties


class OpenEnvClient:
    """The text layer over one session of a server; connects at the first reset. Satisfies ``core.Environment``.

    ``system_prompt``: the server's, or what it says of itself and of its actions; then its tools, if it has some.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: ClientConnection | None = None
        self._stack = ExitStack()  # holds the connection, whose context manager it is
        self.system_prompt = ""

    def reset(self, *, seed: int | None = None, **options: Any) -> Observation:
        """Begin an episode on the server."""
        if seed is not None:
            options["seed"] = seed
        observation, fields = self._observe({"type": "reset", "data": options})
        prompt = fields.get("system_prompt")
        self.system_prompt = prompt if isinstance(prompt, str) else _described(self._server)
        # Nothing else on this wire could tell a model of tools.
        if fields.get("tools"):
            self.system_prompt += f"\n{_CALLS}{dumps(fields['tools'])}"
        return observation

    def step(self, action: str) -> Observation:
        """Send an answer. One that is not a JSON object is invalid and not sent, if the server wants several fields."""
        field = self._server.field
        try:
            data = {field: action} if field is not None else loads(action.strip())
        except WireError:
            names = sorted(_properties(self._server.action))
            return Observation(
                text=f"The answer must be one JSON object with the fields {names}.",
                action_valid=False,
                action_error="not a JSON object",
            )
        return self._observe({"type": "step", "data": data})[0]

    def outcome(self) -> Json:
        """Nothing: a server does not tell its hidden truth."""
        return {}

    def close(self) -> None:
        """Say goodbye and close the connection."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            with suppress(WebSocketException):
                connection.send(dumps({"type": "close"}))
        self._stack.close()

    def _observe(self, message: Json) -> tuple[Observation, Json]:
        try:
            data = self._ask(message, "observation")
        except WireError as error:
            # The model's own mistake, from which it may learn; everything else is a fault of the server.
            if message["type"] == "step" and error.code == "VALIDATION_ERROR":
                text = f"The action was refused: {error.message}"
                return Observation(text=text, action_valid=False, action_error=error.message), {}
            way_out = "; say how many it allows, as in ?sessions=1" if error.code == "CAPACITY_REACHED" else ""
            raise EnvironmentFault(f"{self._server.socket}: {error}{way_out}") from error
        fields: Any = data.get("observation")
        if not isinstance(fields, Mapping):
            raise EnvironmentFault(f"expected an observation object, the server sent {str(data)[:200]}")
        fields = cast(Json, fields)
        return _observation(fields, data), fields

    def _ask(self, message: Json, expected: str) -> Json:
        connection = self._connection or self._connect()
        try:
            # A server that refuses says why and closes; what it said can still be read.
            with suppress(ConnectionClosed):
                connection.send(dumps(message))
            answer = loads(connection.recv(_TIMEOUT))
        except (ConnectionClosed, TimeoutError) as error:
            self.close()
            raise EnvironmentFault(f"{self._server.socket} stopped answering: {error or 'timed out'}") from error
        kind = answer.get("type")
        data = answer.get("data")
        if kind not in (expected, "error") or not isinstance(data, Mapping):
            raise EnvironmentFault(f"{self._server.socket} answered {str(answer)[:200]}; expected {expected}")
        data = cast(Json, data)
        if kind == "error":
            raise WireError(str(data.get("code", "UNKNOWN")), str(data.get("message", "no reason given")))
        return data

    def _connect(self) -> ClientConnection:
        # A proxy of the environment would be asked for this machine's own address.
        extra: JsonDict = {"proxy": None} if is_loopback(self._server.socket) else {}
        try:
            opening = _dial(self._server.socket, open_timeout=10, compression=None, max_size=_MAX_MESSAGE, **extra)
            self._connection = connection = self._stack.enter_context(opening)
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EnvironmentFault(f"no OpenEnv server answers at {self._server.socket}: {error}") from error
        return connection


def _observation(fields: Json, answer: Json) -> Observation:
    """Reads what a server answered to a reset or a step."""
    text = fields.get("text")
    data = {name: value for name, value in fields.items() if name not in FIELDS}
    truncated = bool(fields.get("truncated"))
    # Servers of others say done alone, which then means terminated.
    done = bool(answer.get("done")) and not truncated
    return Observation(
        text=text if isinstance(text, str) else dumps(data),
        data=data,
        reward=answer.get("reward"),  # the rollout looks at it
        terminated=bool(fields.get("terminated", done)),
        truncated=truncated,
        restart=bool(fields.get("restart")),
        action_valid=bool(fields.get("action_valid", True)),
        action_error=fields.get("action_error"),
    )


def _described(server: Server) -> str:
    if server.field is None:
        how = f"Answer with one JSON object: {dumps(dict(server.action))}"
    else:
        how = f"Your whole answer is sent as the action's {server.field!r}."
    return f"{server.name}. {server.description}\n{how}"
