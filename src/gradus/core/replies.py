"""Reads what a foreign chat server replies: bounded in size, and every field checked before it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx  # which openai 2.54 is made of, the release that verifiers needs
import httpx2  # which openai 3.51 is made of

from gradus.core.frozen_record import frozen_record

LARGEST = 16 << 20  # bytes of one reply
_MOST_TOKENS = 1 << 40  # of one reply; a server that says more cannot be believed
UNREADABLE = (ValueError, RecursionError)  # what a body raises that is not JSON, or nests too deeply
_PLAIN = {"Accept-Encoding": "identity"}  # a few packed bytes could fill the memory


@frozen_record
class ChatReply:
    """The first choice of a chat completion. ``tokens``: of prompt and answer, None if the server does not say them."""

    text: str | None
    reason: object
    calls: list[Any]
    tokens: tuple[int, int] | None


def read_reply(raw: object) -> ChatReply | None:
    """Return what a parsed reply says; None if it is not a chat completion. A field of a wrong type counts as missing."""
    choices = getattr(raw, "choices", None)
    if not isinstance(choices, list) or not choices:
        return None
    first = cast(list[Any], choices)[0]
    message = getattr(first, "message", None)
    text = getattr(message, "content", None) or getattr(message, "refusal", None)
    calls = getattr(message, "tool_calls", None)
    return ChatReply(
        text=text if isinstance(text, str) else None,
        reason=getattr(first, "finish_reason", None),
        calls=cast(list[Any], calls) if isinstance(calls, list) else [],
        tokens=tokens_used(raw),
    )


def tokens_used(raw: object) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer that a reply was charged for; None if it does not say them."""
    usage = getattr(raw, "usage", None)
    prompt, completion = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if type(prompt) is not int or type(completion) is not int:  # True is an int, and no count
        return None
    if not (0 <= prompt <= _MOST_TOKENS and 0 <= completion <= _MOST_TOKENS):
        return None
    return prompt, completion


def bounded_client(**settings: Any) -> httpx2.AsyncClient:
    """Return openai's own HTTP client, which reads at most :data:`LARGEST` bytes of a reply, and none that is packed."""
    import openai

    return openai.DefaultAsyncHttpxClient(headers=_PLAIN, event_hooks={"response": [_bound]}, **settings)


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.ReadError("the reply is packed, though plain text was asked for")
    assert isinstance(response.stream, httpx.AsyncByteStream | httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream)


class _Bounded(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream | httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > LARGEST:
                raise httpx2.ReadError(f"the reply has more than {LARGEST} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
