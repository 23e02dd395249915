"""A socket for a server, taken before anything slow is done, so that a port in use is said in a sentence."""

from __future__ import annotations

import socket

from gradus.core import ConfigError

__all__ = ["listen", "url"]


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


def url(listener: socket.socket, host: str, *, scheme: str = "http", path: str = "") -> str:
    """What a client calls."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}{path}"
