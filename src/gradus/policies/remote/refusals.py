"""Sorts a server's errors: another attempt, a failure of this row, or of all rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import APIStatusError

LONGEST_WAIT = 120.0  # seconds; a server that asks for more is out of quota, and waiting for it would look like a hang
# Key, account or address: no other row will fare better. 403 may be one prompt's.
OUT_OF_SERVICE = frozenset({401, 402, 404})


class CallError(Exception):
    """A call that finally failed. ``lasting``: the next row would fail in the same way."""

    def __init__(self, message: str, *, kind: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.lasting = lasting


class Unanswered(Exception):
    """One attempt failed and another may succeed; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, message: str, *, kind: str, wait: float | None = None, lasting: bool = False) -> None:
        super().__init__(message)
        self.kind, self.wait, self.lasting = kind, wait, lasting


def status_problem(error: APIStatusError) -> Exception:
    """Returns what an HTTP error means for this row and for the others."""
    status, said = error.status_code, _said(error)
    wait = _retry_after(error.response.headers)
    if status == 429 and (error.code == "insufficient_quota" or (wait or 0.0) > LONGEST_WAIT):
        return CallError(f"the account's quota is used up (HTTP 429: {said})", kind="Quota", lasting=True)
    if (wait or 0.0) > LONGEST_WAIT:
        return CallError(
            f"the server asks for {wait:.0f} s of patience (HTTP {status}: {said})", kind=f"HTTP{status}", lasting=True
        )
    if status in (408, 409, 425, 429) or status >= 500:
        return Unanswered(f"the server answered HTTP {status} ({said})", kind=f"HTTP{status}", wait=wait)
    if error.code == "context_length_exceeded" or "context length" in said.lower():
        return CallError(said, kind="ContextLengthError")
    return CallError(
        f"the server refused with HTTP {status}: {said}", kind=f"HTTP{status}", lasting=status in OUT_OF_SERVICE
    )


def _said(error: APIStatusError) -> str:
    """The server's own words, without the client's wrapping."""
    body = error.body
    if isinstance(body, dict):
        words = body.get("message") or body.get("detail") or body.get("error")
        if words:
            return brief(words)
    return brief(error.response.text or error.message)


def brief(value: object) -> str:
    """The first 200 characters, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:199] + "…"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asked for, from ``retry-after-ms`` or ``Retry-After`` (seconds or a date); RFC 9110, 10.2.3."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / divisor
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if seconds >= 0 and seconds == seconds:
            return seconds
    return None
