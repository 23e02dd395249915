"""Helpers for clients of HTTP servers: this machine's own addresses, and the options that a chat model takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_RENAMED = {"max_tokens": "max_completion_tokens"}
_MAY_BE_LEFT_OUT = ("temperature", "seed")
_UNSUPPORTED = (
    r"(?:unsupported|unrecogni[sz]ed|not support|not allowed|not permitted|forbidden|deprecated|only the default)"
)


def is_loopback(address: str) -> bool:
    """Say whether a URL is of this machine: a proxy would be in the way there.

    >>> is_loopback("ws://[::1]:8000/ws"), is_loopback("https://localhost.example.org")
    (True, False)
    """
    return urlsplit(address).hostname in LOOPBACK


class ChatOptions:
    """The options that one model of one server takes; refusals teach it, for all requests that use it.

    ``max_tokens`` gets its newer name where that is wanted. ``temperature`` and ``seed`` are left out where they are not supported, which
    is told once on standard error.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._renamed: dict[str, str] = {}
        self._left_out: set[str] = set()

    def accepted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options as they are to be sent now; those that are None are left to the server."""
        return {
            self._renamed.get(name, name): value
            for name, value in options.items()
            if value is not None and name not in self._left_out
        }

    def learn(self, sent: Mapping[str, Any], refusal: Exception) -> bool:
        """Return True if ``refusal`` names an option of ``sent`` that :meth:`accepted` now gives otherwise: ask again then."""
        said, learned = _said(refusal), False
        for name, new in _RENAMED.items():
            if name in sent and new in said:
                self._renamed[name], learned = new, True
        for name in _MAY_BE_LEFT_OUT:
            if name in sent and _unsupported(name, refusal):
                self._leave_out(name)
                learned = True
        return learned

    def _leave_out(self, name: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            print(f"warning: {self._model} does not support this {name}; it is asked without one", file=sys.stderr)


def _said(refusal: Exception) -> str:
    """All that the server answered; the exception's own text has the message alone."""
    return str(getattr(refusal, "body", None) or refusal)


def _unsupported(name: str, refusal: Exception) -> bool:
    """Say whether the server does not support an option at all, or only refuses its value."""
    blamed = getattr(refusal, "param", None)
    if isinstance(blamed, str) and blamed:
        return blamed == name and re.search(_UNSUPPORTED, _said(refusal), re.IGNORECASE) is not None
    near = rf"\b{name}\b[^.]{{0,60}}{_UNSUPPORTED}|{_UNSUPPORTED}[^.]{{0,60}}\b{name}\b"
    return re.search(near, _said(refusal), re.IGNORECASE) is not None
