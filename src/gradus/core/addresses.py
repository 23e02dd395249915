"""Which addresses are this machine's own."""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(address: str) -> bool:
    """Whether a URL is of this machine: a proxy would be in the way there.

    >>> is_loopback("ws://[::1]:8000/ws"), is_loopback("https://localhost.example.org")
    (True, False)
    """
    return urlsplit(address).hostname in LOOPBACK
