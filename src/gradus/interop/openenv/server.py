"""An OpenEnv server for any environment: WebSocket sessions, and pages that describe it.

A step is one ``json.loads``, one environment step and one ``json.dumps``: validation models on that path would cost more than
the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.waiting import blocking
from gradus.interop.guard import Guard
from gradus.interop.openenv.sessions import Session, SessionSlots
from gradus.interop.openenv.wire import dumps
from gradus.interop.serving import listening
from gradus.version import __version__

_MAX_MESSAGE = 4 * 2**20  # bytes; an answer of a language model is far below
_TURN = 8  # messages a socket may have served before the others are looked at
# Tools are named by a reset and called by a step, so the Model Context Protocol finds none. The code is JSON-RPC's.
_NO_MCP = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "tools are called by a step of /ws"}}


def create_app(spec: EnvironmentSpec, *, sessions: int = 256, hosts: Collection[str] | None = None) -> Starlette:
    """The ASGI application: ``/ws``, and ``/schema``, ``/metadata``, ``/health`` and what ``openenv validate`` looks for.

    ``sessions`` episodes may run at once. ``hosts``: names that Host and Origin may have, None for any.
    """
    if sessions < 1:
        raise ConfigError(f"sessions must be at least 1, got {sessions}")
    places = SessionSlots(sessions)

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        with closing(Session(spec, places)) as session:
            await _serve(socket, session, threads=spec.stepping.threads)

    pages = {
        "/schema": schemas(spec),
        "/metadata": {"name": spec.name, "description": spec.summary, "version": __version__},
        "/health": {"status": "healthy"},
    }
    api = {"title": f"Gradus environment {spec.name}", "version": "1.0.0"}  # `openenv validate --url` looks for it
    paths = {path: {"get": {"responses": {"200": {"description": "answered"}}}} for path in pages}
    pages["/openapi.json"] = {"openapi": "3.1.0", "info": api, "paths": paths}
    routes = [WebSocketRoute("/ws", serve), *(_page(path, value) for path, value in pages.items())]
    routes.append(_page("/mcp", _NO_MCP, method="POST"))
    app = Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts, largest_body=_MAX_MESSAGE)])
    app.state.places = places
    return app


def schemas(spec: EnvironmentSpec) -> dict[str, Any]:
    """JSON schemas of action, observation and state. An action is a text, or what the environment's ``action_schema`` says."""
    environment = blocking(spec.make())
    try:
        typed: Mapping[str, Any] | None = getattr(environment, "action_schema", None)
    finally:
        environment.close()
    said = "A policy's answer, as a language model writes it. A line of JSON calls a tool, if a reset named tools."
    fields = {"text": {"type": "string", "description": said}}
    answer = {"title": "TextAction", "type": "object", "properties": fields, "required": ["text"]}
    action = answer if typed is None else {"title": "Action", "anyOf": [dict(typed), answer]}
    return {"action": action, "observation": {"type": "object"}, "state": {"type": "object"}}


def server_config(app: Starlette, *, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Config:
    """Says how uvicorn should serve it: without compression of messages, which costs more than it saves here.

    Pings find clients that vanished without a word; their sessions are freed within 40 seconds.
    """
    pings = {"ws_ping_interval": 20.0, "ws_ping_timeout": 20.0}
    sizes = {"ws_per_message_deflate": False, "ws_max_size": _MAX_MESSAGE}
    return listening.server_config(app, host=host, port=port, **pings, **sizes)


async def _serve(socket: WebSocket, session: Session, *, threads: bool) -> None:
    """Answer one client until it leaves. ``threads``: an environment that waits or computes long leaves the event loop."""
    served = 0
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
        served += 1
        if served % _TURN == 0:  # a client that sends without waiting must not keep the others waiting
            await asyncio.sleep(0)


def _page(path: str, value: Mapping[str, Any], *, method: str = "GET") -> Route:
    """A route whose answer never changes."""
    body = dumps(value)
    answer: Callable[[Request], Response] = lambda request: Response(body, media_type="application/json")  # noqa: E731
    return Route(path, answer, methods=[method])
