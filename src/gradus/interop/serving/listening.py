"""Starts servers alike. Their socket is taken before anything slow is done, so that a port in use is said in a sentence."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gradus.core import ConfigError

GRACE = 5.0  # seconds that requests under way have when a server is told to end
LAST = 1.0  # seconds that a cancelled request has to let go
COMING = 20.0  # seconds that a client has to send a request, its headers and its body
# The command line's thresholds are for records without cycles. Each request leaves cycles behind, which took 10 MB and more.
COLLECTED = 10_000, 10, 10


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; clients wait until somebody serves. Port 0 takes a free one. Raises ConfigError if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError, OverflowError) as error:  # no such address, a name that is none, a port above 65,535
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen at {host}:{port} ({reason}); choose another --port or --host") from error


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """Says how uvicorn serves all applications of the house: quiet, and without patience for requests that do not come."""
    return uvicorn.Config(app, http=Prompt, log_level="warning", access_log=False, **options)


def serve_until_stopped(config: uvicorn.Config, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have :data:`GRACE` seconds and are cancelled after them."""
    gc.set_threshold(*COLLECTED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has ended
    config.timeout_graceful_shutdown = GRACE  # type: ignore[assignment]  # asyncio.wait_for takes parts of a second
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    _Server(config).run(sockets=[listener])


class Prompt(HttpToolsProtocol):
    """uvicorn's protocol, which closes connections whose requests do not come: else a thousand of them keep all others out."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
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
        coming = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if self._end is not None and not coming:
            self._end.cancel()
            self._end = None
        elif self._end is None and coming:
            self._end = self.loop.call_later(COMING, self._give_up)

    def _give_up(self) -> None:
        if self.transport.get_protocol() is self:  # a websocket has one of its own
            self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which SIGTERM ends even if a call that cannot be cancelled, such as an environment's step, takes longer."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if sig == signal.SIGTERM:
            end = threading.Timer(GRACE + LAST, os._exit, [0])
            end.daemon = True
            end.start()


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """False for what the end of the server cancels: uvicorn logs each request as an error of the application, with a traceback.

    After the second Ctrl-C it logs the traceback of the application's end as a text.
    """
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and not str(record.msg).rstrip().endswith("CancelledError")


def url(listener: socket.socket, host: str, *, scheme: str = "http", path: str = "") -> str:
    """Returns the address that a client calls."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}{path}"
