"""Helpers for clients of HTTP servers: this machine's own addresses, and the options that a chat model takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from gradus.core.values import Json, JsonDict

T = TypeVar("T")
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

    async def ask(self, create: Callable[[JsonDict], Awaitable[T]], options: Json) -> T:
        """Return what ``create`` gives for these options; ask otherwise if the server does not support one of them."""
        import openai

        while True:  # ends: each refusal that teaches something leaves an option out or renames it
            body = self._accepted(options)
            try:
                return await create(body)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as refusal:
                if not self._learn(body, refusal):
                    raise

    def _accepted(self, options: Json) -> JsonDict:
        """Return the options as they are to be sent now; those that are None are left to the server."""
        return {
            self._renamed.get(name, name): value
            for name, value in options.items()
            if value is not None and name not in self._left_out
        }

    def _learn(self, sent: Json, refusal: Exception) -> bool:
        """Return True if ``refusal`` names an option of ``sent`` that :meth:`_accepted` now gives otherwise: ask again then."""
        # All that the server answered; the exception's own text has the message alone.
        answer = str(getattr(refusal, "body", None) or refusal)
        renamed = {old: new for old, new in _RENAMED.items() if old in sent and new in answer}
        named = {name for name in _MAY_BE_LEFT_OUT if re.search(rf"\b{name}\b", answer)}
        unsupported = re.search(_UNSUPPORTED, answer, re.IGNORECASE)
        left_out = named & sent.keys() if unsupported else set[str]()
        for name in left_out - self._left_out:
            print(f"warning: {self._model} does not support this {name}; it is asked without one", file=sys.stderr)
        self._renamed |= renamed
        self._left_out |= left_out
        return bool(renamed or left_out)
