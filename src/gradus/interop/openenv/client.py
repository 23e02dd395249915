"""Any OpenEnv server as an environment: ``openenv:ws://host:port``, also ``wss``, ``http`` and ``https``.

What a query after the address may say: ``turns`` (most turns of an episode, default 64), ``field`` (the action field that
takes a policy's answer, found from the server's schema otherwise) and ``sessions`` (episodes that the server runs at once; a
server that allows only one is found out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import fsum
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    Grader,
    Observation,
    Policy,
    Reward,
    RewardTerm,
    Stepping,
    Task,
)
from gradus.interop.openenv.wire import FIELDS, WireError, dumps, loads, read_observation
from gradus.policies.scripted import FunctionPolicy

_SCHEMES = {"ws": ("ws", "http"), "http": ("ws", "http"), "wss": ("wss", "https"), "https": ("wss", "https")}
_OPTIONS = ("turns", "field", "sessions")
_TURNS = 64
_EPISODES = 100
_TRAINING = 1_000_000  # training seeds begin here and never meet those of the condition
_TIMEOUT = 60.0  # seconds for one answer
_MAX_MESSAGE = 100 * 2**20  # bytes, OpenEnv's own default for clients


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where a server is and what it said of itself. ``field`` None: an answer is read as a JSON object of action fields."""

    socket: str
    name: str
    description: str
    action: Mapping[str, Any]
    field: str | None
    turns: int = _TURNS


class OpenEnvClient:
    """The text layer over one session of a server; connects at the first reset. Satisfies ``core.Environment``."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: ClientConnection | None = None
        self._stack = ExitStack()  # holds the connection, whose context manager it is
        self._system_prompt = ""

    @property
    def system_prompt(self) -> str:
        """What the server gives as ``system_prompt``, or what it says of itself and of its actions."""
        return self._system_prompt

    @property
    def state(self) -> Mapping[str, Any]:
        """The server's public state."""
        return self._ask({"type": "state"}, "state")

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode on the server."""
        data = {name: value for name, value in (("seed", seed), ("episode_id", episode_id)) if value is not None}
        observation, fields = self._observe({"type": "reset", "data": {**data, **options}})
        prompt = fields.get("system_prompt")
        self._system_prompt = prompt if isinstance(prompt, str) else _described(self._server)
        return observation

    def step(self, action: str) -> Observation:
        """Send an answer. One that is no JSON object where the server wants several fields is an invalid action."""
        data = self._action(action)
        if data is None:
            return Observation(
                text=f"The answer must be one JSON object with the fields {sorted(_properties(self._server.action))}.",
                action_valid=False,
                action_error="not a JSON object",
            )
        return self._observe({"type": "step", "data": data}, refusable=True)[0]

    def step_typed(self, action: Mapping[str, Any]) -> Observation:
        """Send action fields as they are."""
        return self._observe({"type": "step", "data": dict(action)})[0]

    def outcome(self) -> Mapping[str, Any]:
        """Nothing: a server does not tell its hidden truth."""
        return {}

    def probe(self) -> None:
        """Take a session without beginning an episode. Raises WireError where the server has none left."""
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

    def _observe(self, message: Mapping[str, Any], *, refusable: bool = False) -> tuple[Observation, Mapping[str, Any]]:
        try:
            data = self._ask(message, "observation")
            fields, reward, done = read_observation(data)
        except WireError as error:
            if refusable and error.code == "VALIDATION_ERROR":
                text = f"The action was refused: {error.message}"
                return Observation(text=text, action_valid=False, action_error=error.message), {}
            raise EnvironmentFault(f"{self._server.socket}: {error}") from error
        return _observation(fields, reward, done), fields

    def _ask(self, message: Mapping[str, Any], expected: str) -> Mapping[str, Any]:
        connection = self._connection or self._connect()
        try:
            # A server that refuses says why and closes; what it said can still be read.
            with suppress(ConnectionClosed):
                connection.send(dumps(message))
            answer = loads(connection.recv(_TIMEOUT))
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
        extra: dict[str, Any] = {"proxy": None} if _is_local(self._server.socket) else {}
        try:
            connection = self._stack.enter_context(
                connect(self._server.socket, open_timeout=10, compression=None, max_size=_MAX_MESSAGE, **extra)
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EnvironmentFault(f"no OpenEnv server answers at {self._server.socket}: {error}") from error
        self._connection = connection
        return connection


def _observation(fields: Mapping[str, Any], reward: float | None, done: bool) -> Observation:
    text = fields.get("text")
    data = {name: value for name, value in fields.items() if name not in FIELDS}
    truncated = bool(fields.get("truncated", False))
    return Observation(
        text=text if isinstance(text, str) else dumps(data),
        data=data,
        reward=reward,
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


def load(argument: str | None) -> EnvironmentSpec:
    """The environment behind an address. Its reward is the sum of the rewards that the server gives."""
    if not argument:
        raise ConfigError("expected the address of an OpenEnv server, as in openenv:ws://localhost:8000")
    server, sessions = describe(argument)
    name = f"openenv:{argument}"
    return EnvironmentSpec(
        name=name,
        summary=server.description,
        make=lambda: OpenEnvClient(server),
        graders={
            "return": Grader(
                name="return",
                summary="sum of the server's rewards",
                weights={"return": 1.0},
                compute=_grade,
                per_turn=True,
            )
        },
        default_grader="return",
        conditions={"main": Condition(name="main", seeds=range(_EPISODES), summary=f"seeds 0 to {_EPISODES - 1}")},
        train_task=lambda index: Task(environment=name, seed=_TRAINING + index),
        policies={"constant": _constant},
        true_reward=lambda episode: episode.env_return,
        true_reward_name="return",
        max_turns=server.turns,
        max_sessions=sessions,
        stepping=Stepping(threads=True),
    )


def describe(argument: str) -> tuple[Server, int | None]:
    """Read the address, ask the server for its schema and its name; also how many sessions it allows, if it limits them."""
    try:
        parts = urlsplit(argument)
    except ValueError as error:
        raise ConfigError(f"expected an address such as ws://localhost:8000, got {argument!r}: {error}") from error
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ConfigError(f"expected an address such as ws://localhost:8000, got {argument!r}")
    socket_scheme, page_scheme = _SCHEMES[parts.scheme]
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = options.keys() - set(_OPTIONS)
    if unknown:
        raise ConfigError(f"unknown option {sorted(unknown)} in {argument!r}; expected {', '.join(_OPTIONS)}")
    turns, sessions = _positive(options, "turns") or _TURNS, _positive(options, "sessions")
    path = parts.path.rstrip("/").removesuffix("/ws")
    page = urlunsplit((page_scheme, parts.netloc, path, "", ""))
    try:
        with httpx.Client(timeout=_TIMEOUT, trust_env=not _is_local(page)) as client:
            described = client.get(f"{page}/schema").raise_for_status().json()
            about = client.get(f"{page}/metadata").raise_for_status().json()
        action = described["action"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no OpenEnv server answers at {page} ({type(error).__name__}: {error}); is it running? "
            "`gradus serve-env rhythm` starts one"
        ) from error
    server = Server(
        socket=urlunsplit((socket_scheme, parts.netloc, f"{path}/ws", "", "")),
        name=str(about.get("name", "environment")),
        description=str(about.get("description", "")),
        action=action,
        field=options.get("field") or _text_field(action),
        turns=turns,
    )
    return server, sessions or _allowed(server)


def _allowed(server: Server) -> int | None:
    """How many sessions the server allows, where it does not even allow two (a stock one, unless told otherwise); else None."""
    first, second = OpenEnvClient(server), OpenEnvClient(server)
    try:
        for client in (first, second):
            client.probe()
    except WireError as error:
        most = (error.details or {}).get("max_sessions")
        return most if isinstance(most, int) and most > 0 else 1
    except EnvironmentFault:  # what is wrong will be said by the first episode, where it belongs
        return None
    finally:
        first.close()
        second.close()
    return None


def _is_local(address: str) -> bool:
    """Whether a proxy would be in the way."""
    return urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    if not options[name].isdecimal() or int(options[name]) < 1:
        raise ConfigError(f"{name} must be a positive integer, got {options[name]!r}")
    return int(options[name])


def _properties(action: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: kind for name, kind in action.get("properties", {}).items() if name != "metadata"}


def _text_field(action: Mapping[str, Any]) -> str | None:
    """The field that a policy's answer goes to: ``text`` where it is taken, else the only field if that is a string."""
    choices = [action, *action.get("anyOf", ())]
    if any("text" in _properties(choice) for choice in choices):
        return "text"
    fields = _properties(action)
    only = next(iter(fields)) if len(fields) == 1 else None
    return only if only is not None and fields[only].get("type") == "string" else None


def _grade(episodes: Sequence[Episode]) -> list[Reward]:
    return [_grade_one(episode) for episode in episodes]


def _grade_one(episode: Episode) -> Reward:
    """The sum of the rewards; missing where the server gave none at all, which is not the same as zero."""
    if episode.env_return is None:
        return Reward(grader="return", value=None, error="the server gave no reward in this episode")
    terms = tuple((RewardTerm(component="return", value=turn.env_reward or 0.0),) for turn in episode.turns)
    value = fsum(term.value for (term,) in terms)
    return Reward(grader="return", value=value, components={"return": value}, terms=terms)


def _constant(text: str | None) -> Policy:
    """Always the same answer."""
    return FunctionPolicy(f"constant:{text or ''}", lambda seen, script: text or "")
