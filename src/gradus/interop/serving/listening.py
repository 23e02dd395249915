"""A socket for a server, taken before anything slow is done, so that a port in use is said in a sentence."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from typing import TYPE_CHECKING

from gradus.core import ConfigError

if TYPE_CHECKING:
    import uvicorn

GRACE = 5  # seconds that requests under way have when a server is told to end
# The command line's thresholds are for records without cycles. Each request leaves cycles behind, which took 10 MB and more.
COLLECTED = 10_000, 10, 10


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises ConfigError if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}); choose another --host") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen at {host}:{port} ({error.strerror}); choose another --port or --host"
        ) from error
    return listener


def serve_until_stopped(config: uvicorn.Config, listener: socket.socket) -> None:
    """Serve at a bound socket until Ctrl-C or SIGTERM; requests under way then have :data:`GRACE` seconds."""
    import uvicorn

    gc.set_threshold(*COLLECTED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has ended
    config.timeout_graceful_shutdown = GRACE
    uvicorn.Server(config).run(sockets=[listener])


def url(listener: socket.socket, host: str, *, scheme: str = "http", path: str = "") -> str:
    """What a client calls."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}{path}"
