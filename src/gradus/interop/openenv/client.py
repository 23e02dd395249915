"""Any OpenEnv server as an environment: ``openenv:ws://host:port``, also ``wss``, ``http`` and ``https``.

What a query after the address may say: ``turns`` (most turns of an episode, default 64), ``field`` (the action field that
takes a policy's answer, found from the server's schema otherwise) and ``sessions`` (episodes that the server runs at once; a
server that allows only one is found out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentFault,
    EnvironmentSpec,
    Stepping,
    Task,
)
from gradus.core.servers import is_loopback
from gradus.interop.openenv.remote_session import TIMEOUT, TURNS, OpenEnvClient, Server, properties
from gradus.interop.openenv.wire import WireError
from gradus.interop.suites.games import return_grader
from gradus.interop.suites.naming import known_options
from gradus.policies.scripted import constant_policy

_SCHEMES = ("ws", "http", "wss", "https")
_EPISODES = 100
_TRAINING = 1_000_000  # training seeds begin here and never meet those of the condition


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
        graders={"return": return_grader(per_turn=True, needed=True)},
        default_grader="return",
        conditions={"main": Condition(name="main", seeds=range(_EPISODES), summary=f"seeds 0 to {_EPISODES - 1}")},
        train_task=lambda index: Task(environment=name, seed=_TRAINING + index),
        policies={"constant": lambda text: constant_policy(text or "")},
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
    secure = "s" if parts.scheme in ("wss", "https") else ""
    options = known_options(f"openenv:{argument}", parts.query, {"turns": int, "field": str, "sessions": int})
    path = parts.path.rstrip("/").removesuffix("/ws")
    page = urlunsplit((f"http{secure}", parts.netloc, path, "", ""))
    try:
        with httpx.Client(timeout=TIMEOUT, trust_env=not is_loopback(page)) as client:
            described = client.get(f"{page}/schema").raise_for_status().json()
            about = client.get(f"{page}/metadata").raise_for_status().json()
        action = described["action"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no OpenEnv server answers at {page} ({type(error).__name__}: {error}); is it running? "
            "`gradus serve-env rhythm` starts one"
        ) from error
    server = Server(
        socket=urlunsplit((f"ws{secure}", parts.netloc, f"{path}/ws", "", "")),
        name=str(about.get("name", "environment")),
        description=str(about.get("description", "")),
        action=action,
        field=options.get("field") or _text_field(action),
        turns=options.get("turns", TURNS),
    )
    return server, options.get("sessions") or _allowed(server)


def _allowed(server: Server) -> int | None:
    """Returns how many sessions the server allows, where it does not even allow two (a stock one, unless told otherwise); else None."""
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


def _text_field(action: Mapping[str, Any]) -> str | None:
    """The field that a policy's answer goes to: ``text`` if it is taken, else the only field if that is a string."""
    choices = [action, *action.get("anyOf", ())]
    if any("text" in properties(choice) for choice in choices):
        return "text"
    fields = properties(action)
    only = next(iter(fields)) if len(fields) == 1 else None
    return only if only is not None and fields[only].get("type") == "string" else None
