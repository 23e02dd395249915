"""Limits what a server lets in: hosts and origins, a token, and bodies of a bounded size in a bounded time."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradus.core.servers import LOOPBACK

_OPEN = frozenset({"/health"})  # what answers without a token


def hosts_for(host: str, bound: str) -> Collection[str] | None:
    """The names under which a server at ``host`` may be called; None for any, if it listens to more than this machine.
    ``bound``: the address that ``host`` came to, which decides.

    A web page may point its own name at 127.0.0.1 (DNS rebinding). Its requests then carry that name.
    """
    return LOOPBACK | {host.lower(), bound} if ip_address(bound).is_loopback else None


@dataclass(frozen=True)
class Guard:
    """ASGI middleware. ``hosts``: names that Host and Origin may have, None for any. ``token``: what `Authorization: Bearer` must carry.

    ``largest_body``: bytes of a request; ``body_seconds``: how long a client may take to send them.
    """

    app: ASGIApp
    _: KW_ONLY
    hosts: Collection[str] | None = LOOPBACK
    token: str | None = None
    largest_body: int = 8 * 2**20
    body_seconds: float = 60.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            if refusal is not None:
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
                return
            await self.app(scope, receive, send)
            return
        request = _Bounded(receive, send, self.largest_body, self.body_seconds)
        if refusal is not None:
            await request.refuse(*refusal)
            return
        await self.app(scope, request.receive, request.send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.hosts is not None:
            host, origin = headers.get("host", ""), headers.get("origin")
            if _name(f"//{host}") not in self.hosts:
                return 403, f"this server answers at {', '.join(sorted(self.hosts))} only, not as {host[:80]!r}"
            if origin is not None and _name(origin) not in self.hosts:
                return 403, f"this server takes no requests from pages of {origin[:80]!r}"
        if self.token is not None and scope["path"] not in _OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return 401, "this server wants its token, as in Authorization: Bearer TOKEN"
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:18]) > self.largest_body:
            return 413, f"the body has {length[:18]} bytes, this server takes {self.largest_body}"
        return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class _Bounded:
    """One request's channels: a body that is too long or too slow is refused, and the application sees its client leave."""

    def __init__(self, receive: Receive, send: Send, largest: int, seconds: float) -> None:
        self._receive, self._send = receive, send
        self._largest, self._left, self._seconds = largest, largest, seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._whole = self._refused = False

    async def receive(self) -> Message:
        if self._whole or self._refused:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            return await self.refuse(408, f"the body did not arrive within {self._seconds:g} s")
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._left < 0:
                return await self.refuse(413, f"the body has more than {self._largest} bytes, which this server takes")
        return message

    async def send(self, message: Message) -> None:
        if not self._refused:
            await self._send(message)

    async def refuse(self, status: int, why: str) -> Message:
        """Answer with an error; returns what the application is told instead of more body."""
        self._refused = True
        error: dict[str, Any] = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        return {"type": "http.disconnect"}
