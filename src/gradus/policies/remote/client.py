"""One chat completion over the OpenAI protocol. The official client tries again after faults of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradus.core import Usage
from gradus.core.servers import ChatOptions

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

# Key, account or address: no other row will fare better. 403 may be one prompt's.
OUT_OF_SERVICE = frozenset({401, 402, 404})


class CallError(Exception):
    """A call that finally failed. ``lasting``: the next row would fail in the same way."""

    def __init__(self, message: str, *, kind: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.lasting = lasting


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars per million tokens."""

    prompt: float
    completion: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars of one call."""
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / 1e6


@dataclass(kw_only=True)
class RemoteUsage:
    """The tokens and dollars that a policy's calls have used, those without an answer included if the server said so.

    ``cost`` is in US dollars and None if no price was given or a reply did not say how many tokens it took.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0  # replies without a token count
    price: Price | None = None

    @property
    def cost(self) -> float | None:
        """US dollars."""
        if self.price is None or self.unmetered:
            return None
        return self.price.cost(self.prompt_tokens, self.completion_tokens)

    def of(self, tokens: tuple[int, int] | None) -> Usage:
        """Count a reply; returns what it took."""
        if tokens is None:
            self.unmetered += 1
            return Usage(prompt_tokens=0, completion_tokens=0, cost=None)
        self.prompt_tokens += tokens[0]
        self.completion_tokens += tokens[1]
        cost = None if self.price is None else self.price.cost(*tokens)
        return Usage(prompt_tokens=tokens[0], completion_tokens=tokens[1], cost=cost)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer, what it cost, and whether ``max_tokens`` cut it. ``calls`` are those of tools, as they came."""

    text: str
    usage: Usage
    cut: bool
    calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(kw_only=True)
class ChatClient:
    """Asks ``model`` of one server, at most ``concurrency`` calls at a time; lives in one event loop."""

    client: AsyncOpenAI
    model: str
    concurrency: int
    patience: float  # seconds for an answer, further attempts included
    options: Mapping[str, Any]  # sent with every request, in the form that ``takes`` knows
    takes: ChatOptions
    usage: RemoteUsage
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        seed: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        outage: list[CallError] | None = None,
    ) -> Reply:
        """One answer to a conversation, or :class:`CallError`.

        ``outage`` is shared by the rows of one turn: the first lasting failure lands there, and rows still waiting fail with it.
        """
        outage = [] if outage is None else outage
        own = {"seed": seed, "tools": [dict(tool) for tool in tools] or None}
        async with self._slots:
            if outage:
                raise outage[0]
            try:
                return self._read(await self._answer([dict(message) for message in messages], own))
            except CallError as refused:
                error = CallError(self._clean(str(refused)), kind=refused.kind, lasting=refused.lasting)
                if error.lasting:
                    outage.append(error)
                raise error from None

    async def _answer(self, conversation: Any, own: Mapping[str, Any]) -> object:
        """The reply as parsed by the client, or :class:`CallError`."""
        import openai

        from gradus.core.replies import UNREADABLE

        try:
            async with asyncio.timeout(self.patience):
                return await self._create(conversation, own)
        except (TimeoutError, openai.APITimeoutError):
            raise CallError("no answer came in time", kind="Timeout") from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            refused = type(cause).__name__ == "ConnectError"  # as against a connection lost during one row's answer
            raise CallError(f"no connection to the server ({cause})", kind="Connection", lasting=refused) from None
        except openai.APIStatusError as error:
            raise refusal(error) from None
        except (*UNREADABLE, openai.APIResponseValidationError):
            raise CallError("the reply is not JSON", kind="MalformedReply") from None

    async def _create(self, conversation: Any, own: Mapping[str, Any]) -> object:
        """Ask, and ask otherwise if the server does not support an option."""
        import openai

        wanted = {**self.options, **{name: value for name, value in own.items() if value is not None}}
        while True:
            body = self.takes.accepted(wanted)
            try:
                return await self.client.chat.completions.create(
                    model=self.model, messages=conversation, extra_body=body
                )
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self.takes.learn(body, error):
                    raise

    def _read(self, raw: object) -> Reply:
        from gradus.core.replies import read_reply, tokens_used

        usage, said = self.usage.of(tokens_used(raw)), read_reply(raw)
        if said is None:
            raise CallError(f"expected a chat completion, got {brief(raw)}", kind="MalformedReply")
        calls = tuple(map(self._plain_call, said.calls))
        if said.text is None and not calls:
            if said.reason == "length":
                raise CallError("the answer reached max_tokens before its first word; raise max_tokens", kind="Length")
            raise CallError(f"the reply has no content (finish_reason {said.reason!r})", kind="MalformedReply")
        return Reply(text=self._clean(said.text or ""), usage=usage, cut=said.reason == "length", calls=calls)

    def _plain_call(self, call: Any) -> Mapping[str, Any]:
        """A call as it goes back to the server with the next request."""
        function = getattr(call, "function", None)
        name, arguments = (self._clean(str(getattr(function, part, ""))) for part in ("name", "arguments"))
        return {
            "id": str(getattr(call, "id", "")),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _clean(self, text: str) -> str:
        """Returns a server's message, without the key."""
        key = self.client.api_key
        return text.replace(key, "[key]") if len(key) > 7 else text


def refusal(error: APIStatusError) -> CallError:
    """Returns what an HTTP error means for this row and for the others."""
    status, said = error.status_code, _said(error)
    if error.code == "insufficient_quota":
        return CallError(f"the account's quota is used up (HTTP {status}: {said})", kind="Quota", lasting=True)
    if error.code == "context_length_exceeded" or "context length" in said.lower():
        return CallError(said, kind="ContextLengthError")
    return CallError(
        f"the server refused with HTTP {status}: {said}", kind=f"HTTP{status}", lasting=status in OUT_OF_SERVICE
    )


def _said(error: APIStatusError) -> str:
    """The server's own words, without the client's wrapping."""
    body = error.body
    words = (body.get("message") or body.get("detail") or body.get("error")) if isinstance(body, dict) else None
    return brief(words or error.response.text or error.message)


def brief(value: object) -> str:
    """The first 200 characters, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:199] + "…"
