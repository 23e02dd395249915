"""An OpenEnv server for any environment: WebSocket sessions, and the same over plain HTTP.

The socket's loop is a bare ASGI function and a step is one ``json.loads``, one environment step and one ``json.dumps``:
validation models on that path would cost more than the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from gradus.core import ConfigError, EnvironmentSpec
from gradus.interop.guard import Guard
from gradus.interop.openenv.schema import metadata, openapi, schemas
from gradus.interop.openenv.sessions import Session, SessionSlots
from gradus.interop.openenv.wire import WireError, dumps, loads, observation_data

_MAX_MESSAGE = 4 * 2**20  # bytes; an answer of a language model is far below
_TURN = 8  # messages a socket may have served before the others are looked at
_STATUS = {"CAPACITY_REACHED": 503, "EXECUTION_ERROR": 500, "FACTORY_ERROR": 500, "SESSION_ERROR": 409}
_NO_SUCH_METHOD = -32601  # JSON-RPC 2.0


@dataclass
class _Server:
    """State that the routes share. ``http``: the episode of clients without a socket."""

    spec: EnvironmentSpec
    places: SessionSlots
    http: Session
    http_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # requests do not wait for each other by themselves

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; an environment that waits or computes long leaves the event loop."""
        threads = self.spec.stepping.threads
        return await anyio.to_thread.run_sync(call, *arguments) if threads else call(*arguments)


def create_app(spec: EnvironmentSpec, *, sessions: int = 256, hosts: Collection[str] | None = None) -> Starlette:
    """The ASGI application: ``/ws``, ``/reset``, ``/step``, ``/state``, ``/schema``, ``/metadata``, ``/health``.

    ``sessions`` episodes may run at once. Plain HTTP has one of them, for a single client. ``hosts``: names that Host and Origin may
    have, None for any.
    """
    if sessions < 1:
        raise ConfigError(f"sessions must be at least 1, got {sessions}")
    places = SessionSlots(sessions)
    server = _Server(spec, places, Session(spec, places))
    described = schemas(spec)
    routes = [
        WebSocketRoute("/ws", _Socket(server)),
        Route("/reset", _answering(server, _http_reset), methods=["POST"]),
        Route("/step", _answering(server, _http_step), methods=["POST"]),
        Route("/state", _answering(server, _http_state)),
        Route("/schema", _constant(described)),
        Route("/metadata", _constant(metadata(spec))),
        Route("/health", _constant({"status": "healthy"})),
        Route("/openapi.json", _constant(openapi(spec))),
        Route("/mcp", _mcp, methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts, largest_body=_MAX_MESSAGE)])
    app.state.places = places
    return app


def server_config(app: Starlette, *, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Config:
    """Says how uvicorn should serve it: no per-message compression, which costs more than it saves here, and quiet access logs.

    Pings find clients that vanished without a word; their sessions are freed within 40 seconds.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        ws_per_message_deflate=False,
        ws_max_size=_MAX_MESSAGE,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
    )


class _Socket:
    """``/ws`` as a bare ASGI application: a session for each connection."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        session = Session(self._server.spec, self._server.places)
        try:
            await self._serve(session, receive, send)
        finally:
            session.close()

    async def _serve(self, session: Session, receive: Receive, send: Send) -> None:
        served = 0
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            raw = message.get("text")
            raw = raw if raw is not None else message.get("bytes") or b""
            reply = await self._server.run(session.handle, raw)
            if reply is None:
                await send({"type": "websocket.close", "code": 1000})
                return
            try:
                await send({"type": "websocket.send", "text": reply})
            except OSError:  # the client went away while its answer was made
                return
            served += 1
            if served % _TURN == 0:  # a client that sends without waiting must not keep the others waiting
                await asyncio.sleep(0)


_Answer = Callable[[_Server, Mapping[str, Any]], Awaitable[dict[str, Any]]]


def _answering(server: _Server, answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
    """A route that reads a JSON body and turns errors into a status and a detail."""

    async def route(request: Request) -> Response:
        try:
            body = await request.body()
            asked = loads(body) if body else {}
            async with server.http_lock:
                return _json(await answer(server, asked))
        except WireError as error:
            detail = {"message": error.message, "code": error.code, **(error.details or {})}
            return _json({"detail": detail}, _STATUS.get(error.code, 422))
        except Exception as error:
            return _json({"detail": {"message": f"{type(error).__name__}: {error}", "code": "EXECUTION_ERROR"}}, 500)

    return route


async def _http_reset(server: _Server, body: Mapping[str, Any]) -> dict[str, Any]:
    return observation_data(*await server.run(server.http.reset, body))


async def _http_step(server: _Server, body: Mapping[str, Any]) -> dict[str, Any]:
    action = body.get("action")
    if not isinstance(action, dict):
        raise WireError("VALIDATION_ERROR", f'expected {{"action": {{...}}}}, got {sorted(body)}')
    return observation_data(await server.run(server.http.step, action))


async def _http_state(server: _Server, body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(server.http.state)


def _constant(value: Mapping[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    body = dumps(value)

    async def route(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return route


async def _mcp(request: Request) -> Response:
    """Tools live behind the environment's actions here, so the Model Context Protocol finds an empty list."""
    try:
        call = loads(await request.body())
    except WireError:
        call = {}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": call.get("id")}
    if call.get("method") == "tools/list":
        answer["result"] = {"tools": []}
    else:
        answer["error"] = {
            "code": _NO_SUCH_METHOD,
            "message": f"no method {call.get('method')!r}; tools are named by a reset and called by a step",
        }
    return _json(answer)


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(dumps(value), status, media_type="application/json")
