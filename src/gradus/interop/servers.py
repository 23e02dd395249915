"""Opens servers alike, and limits what they let in: hosts and origins, and bodies of a bounded size."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import sys
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gradus.core import ConfigError
from gradus.core.servers import LOOPBACK
from gradus.core.values import JsonDict

_GRACE = 5  # seconds that requests under way have when a server is told to end
_BODIES = 16  # of the largest size, which requests under way may hold together
_READING = 60.0  # seconds that a client has to read on
_COMING = 20.0  # seconds that a client has to send a request, its headers and its body
# The command line's thresholds are for records without cycles. Each request leaves cycles behind, which took 10 MB and more.
_COLLECTED = 10_000, 10, 10


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; clients wait until somebody serves, so that a port in use is said before anything slow is done.

    Port 0 takes a free one. Raises ConfigError if the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error}); choose another --port or --host") from error


def server_config(app: Any, *, ws: Literal["none", "auto"] = "none", **options: Any) -> uvicorn.Config:
    """Says how uvicorn serves all applications of the house: quiet, and without patience for requests that do not come."""
    limits = {"http": ImpatientProtocol, "timeout_graceful_shutdown": _GRACE}
    return uvicorn.Config(app, log_level="warning", access_log=False, ws=ws, **limits, **options)


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which closes connections whose requests do not come: else a thousand of them keep all others out."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        # uvicorn counts requests; a client that sends none holds a file all the same.
        most = self.limit_concurrency
        if most is not None and len(self.connections) > most:
            transport.abort()
        else:
            self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _wait_for_request(self) -> None:
        """Begin to count before a request and stop behind its body."""
        cycle: Any = self.cycle  # None before the first request
        coming = cycle is None or cycle.response_complete or cycle.more_body
        if self._end is not None and not coming:
            self._end.cancel()
            self._end = None
        elif self._end is None and coming:
            self._end = self.loop.call_later(_COMING, self._give_up)

    def _give_up(self) -> None:
        if self.transport.get_protocol() is self:  # a websocket has one of its own
            self.transport.close()


def _exit(number: int, frame: object) -> None:
    sys.exit(0)


def serve_until_stopped(config: uvicorn.Config, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have a few seconds."""
    gc.set_threshold(*_COLLECTED)
    signal.signal(signal.SIGTERM, _exit)  # uvicorn raises the signal again when it has ended
    uvicorn.Server(config).run(sockets=[listener])


def url(listener: socket.socket, host: str, *, scheme: str = "http", path: str = "") -> str:
    """Returns the address that a client calls."""
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{listener.getsockname()[1]}{path}"


def hosts_for(host: str, bound: str) -> Collection[str] | None:
    """The names under which a server at ``host`` may be called; None for any, if it listens to more than this machine.
    ``bound``: the address that ``host`` came to, which decides.

    A web page may point its own name at 127.0.0.1 (DNS rebinding). Its requests then carry that name.
    """
    return LOOPBACK | {host.lower(), bound} if ip_address(bound).is_loopback else None


class Load:
    """The bytes of bodies whose requests are under way."""

    def __init__(self) -> None:
        self.size = 0


@dataclass(frozen=True)
class Guard:
    """ASGI middleware that limits what a server lets in. A client that does not read its answer for a minute is let go."""

    app: ASGIApp
    _: KW_ONLY
    # Names that Host and Origin may have; None for any.
    hosts: Collection[str] | None = LOOPBACK
    # Bytes of a request. Those under way hold at most sixteen times that together; what goes beyond is refused with status 503.
    largest_body: int = 4 * 2**20
    load: Load = field(default_factory=Load)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            run = self._bounded if scope["type"] == "http" else self.app
            await run(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, *refusal)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if self.hosts is not None:
            host = headers.get("host", "")
            origin = headers.get("origin")
            # Behind two slashes urlsplit reads a host with its port, and an address in brackets.
            if _name(f"//{host}") not in self.hosts:
                names = ", ".join(sorted(self.hosts))
                return 403, f"this server answers at {names} only, not as {host[:80]!r}"
            if origin is not None and _name(origin) not in self.hosts:
                return 403, f"this server takes no requests from pages of {origin[:80]!r}"
        length = headers.get("content-length", "0")
        # Eighteen digits are enough to compare; int() of a million digits would take long.
        if length.isdigit() and int(length[:18]) > self.largest_body:
            return 413, f"the body has {length[:18]} bytes, this server takes {self.largest_body}"
        return None

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application on a body that is refused as soon as it is too long; the application then sees its client leave."""
        size = 0
        refused = False

        async def read() -> Message:
            nonlocal size, refused
            message = await receive()
            size += len(message.get("body", b""))
            self.load.size += len(message.get("body", b""))
            refusal = self._too_much(size)
            if refusal and not refused:
                refused = True
                await _refuse(push, *refusal)
            # An application that reads on sees its client leave, and stops.
            return {"type": "http.disconnect"} if refused else message

        async def push(message: Message) -> None:
            # The server holds what is not read up to a limit, and then waits.
            async with asyncio.timeout(_READING):
                await send(message)

        async def write(message: Message) -> None:
            if not refused:
                await push(message)

        try:
            await self.app(scope, read, write)
        finally:
            self.load.size -= size

    def _too_much(self, size: int) -> tuple[int, str] | None:
        if size > self.largest_body:
            return 413, f"the body has more than {self.largest_body} bytes, which this server takes"
        if self.load.size > _BODIES * self.largest_body:
            return 503, "too many large requests are under way; try again when some are done"
        return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _refuse(send: Send, status: int, why: str) -> None:
    error: JsonDict = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
