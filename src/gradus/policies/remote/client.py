"""One chat completion over the OpenAI protocol. The official client tries again after faults of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradus.core import ContextLengthError, PolicyError, Usage
from gradus.core.servers import ChatOptions

if TYPE_CHECKING:
    from openai import AsyncOpenAI


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
        self, messages: Sequence[Mapping[str, Any]], *, seed: int | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """One answer to a conversation. Raises PolicyError if there is none, ContextLengthError if the conversation is too long."""
        import openai

        from gradus.core.replies import UNREADABLE

        own = {"seed": seed, "tools": [dict(tool) for tool in tools] or None}
        try:
            async with self._slots, asyncio.timeout(self.patience):
                return self._read(await self._create([dict(message) for message in messages], {**self.options, **own}))
        except (TimeoutError, openai.OpenAIError, *UNREADABLE) as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            said = brief(self._clean(f"{self.model}: {type(error).__name__}: {error}{cause}"))
            long = getattr(error, "code", None) == "context_length_exceeded" or "context length" in said.lower()
            raise (ContextLengthError if long else PolicyError)(said) from None

    async def _create(self, conversation: Any, wanted: Mapping[str, Any]) -> object:
        """Ask, and ask otherwise if the server does not support an option."""
        import openai

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
            raise ValueError(f"expected a chat completion, got {brief(raw)}")
        calls, cut = tuple(map(self._plain_call, said.calls)), said.reason == "length"
        if said.text is None and not calls and not cut:
            raise ValueError(f"the reply has no content (finish_reason {said.reason!r})")
        return Reply(text=self._clean(said.text or ""), usage=usage, cut=cut, calls=calls)

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


def brief(value: object) -> str:
    """The first 200 characters, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:199] + "…"
