"""One chat completion over the OpenAI protocol, asked until it is answered or cannot be.

The official client's own retries are switched off. They do not cover a reply that lacks a chat completion, nor a server that keeps a
connection alive without answering, and each caller would meet a rate limit on its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradus.core import Usage, child_rng
from gradus.core.servers import ChatOptions
from gradus.core.values import whole_characters
from gradus.policies.remote.refusals import CallError, Unanswered, brief, status_problem

if TYPE_CHECKING:
    from openai import AsyncOpenAI

LONGEST_BACKOFF = 30.0  # seconds


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
    """The tokens and dollars that a policy's calls have used, failed and repeated ones included if the server said so.

    ``cost`` is in US dollars and None if no price was given or a reply did not say how many tokens it took.
    """

    calls: int = 0
    retries: int = 0
    failures: int = 0
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


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer, what all attempts at it cost, and whether ``max_tokens`` cut it. ``calls`` are those of tools, as they came."""

    text: str
    usage: Usage
    cut: bool
    calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class _Asked:
    """One request: the conversation, the seed that goes with it, and the tools that may be called."""

    messages: Sequence[Mapping[str, Any]]
    seed: int | None
    tools: Sequence[Mapping[str, Any]]


@dataclass(kw_only=True)
class _Meter:
    """Tokens of all attempts at one answer."""

    prompt: int = 0
    completion: int = 0
    unmetered: int = 0


@dataclass(kw_only=True)
class ChatClient:
    """Asks ``model`` of one server, at most ``concurrency`` calls at a time; lives in one event loop.

    A rate limit that one call meets holds back all others for the time that the server asked for.
    """

    client: AsyncOpenAI
    model: str
    concurrency: int
    retries: int
    timeout: float  # seconds for one whole answer
    backoff: float  # seconds before the first retry; doubles with each
    options: Mapping[str, Any]  # sent with every request, in the form that ``takes`` knows
    takes: ChatOptions
    usage: RemoteUsage
    _slots: asyncio.Semaphore = field(init=False)
    _quiet_until: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        key: tuple[int | str, ...],
        *,
        seed: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        outage: list[CallError] | None = None,
    ) -> Reply:
        """One answer to a conversation, or :class:`CallError`. ``key`` seeds the jitter of the waits.

        ``outage`` is shared by the rows of one turn: the first lasting failure lands there, and rows still waiting fail with it.
        """
        outage = [] if outage is None else outage
        async with self._slots:
            try:
                return await self._persist(_Asked(messages, seed, tools), key, outage)
            except CallError as refused:
                error = CallError(self._clean(str(refused)), kind=refused.kind, lasting=refused.lasting)
                self.usage.failures += 1
                if error.lasting and not outage:
                    outage.append(error)
                raise error from None

    async def _persist(
        self,
        asked: _Asked,
        key: tuple[int | str, ...],
        outage: list[CallError],
    ) -> Reply:
        meter = _Meter()
        for attempt in range(self.retries + 1):
            await self._hold_back()
            if outage:
                raise outage[0]
            try:
                return await self._attempt(asked, meter)
            except Unanswered as problem:
                if attempt == self.retries:
                    message = f"{problem}, after {attempt + 1} attempts"
                    raise CallError(message, kind=problem.kind, lasting=problem.lasting) from None
                self.usage.retries += 1
                await self._wait(problem, attempt, key)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _hold_back(self) -> None:
        while (left := self._quiet_until - time.monotonic()) > 0:
            await asyncio.sleep(left)

    async def _wait(self, problem: Unanswered, attempt: int, key: tuple[int | str, ...]) -> None:
        if problem.wait is not None:
            self._quiet_until = max(self._quiet_until, time.monotonic() + problem.wait)
        jitter = child_rng(0, *key, "backoff", attempt).uniform(0.5, 1.0)
        pause = min(self.backoff * 2**attempt, LONGEST_BACKOFF) * jitter
        # After a limit is lifted, the jitter keeps all waiting rows from coming back in the same instant.
        await asyncio.sleep(pause if problem.wait is None else problem.wait + pause / 4)

    async def _attempt(self, asked: _Asked, meter: _Meter) -> Reply:
        import openai

        from gradus.core.replies import UNREADABLE

        self.usage.calls += 1
        try:
            async with asyncio.timeout(self.timeout):
                raw = await self._create(asked)
        except (TimeoutError, openai.APITimeoutError):
            raise Unanswered(f"no answer within {self.timeout:g} s", kind="Timeout") from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            refused = type(cause).__name__ == "ConnectError"  # as against a connection lost during one row's answer
            raise Unanswered(f"no connection to the server ({cause})", kind="Connection", lasting=refused) from None
        except openai.APIStatusError as error:
            raise status_problem(error) from None
        except (*UNREADABLE, openai.APIResponseValidationError):
            raise Unanswered("the reply is not JSON", kind="MalformedReply") from None
        return self._read(raw, meter)

    async def _create(self, asked: _Asked) -> object:
        """The reply as parsed by the client."""
        import openai

        own = {"seed": asked.seed, "tools": [dict(tool) for tool in asked.tools] or None}
        wanted = {**self.options, **{name: value for name, value in own.items() if value is not None}}
        # The client wants its own TypedDicts; what goes out is the conversation as it stands.
        conversation: Any = [dict(message) for message in asked.messages]
        while True:
            body = self.takes.accepted(wanted)
            try:
                return await self.client.chat.completions.create(
                    model=self.model, messages=conversation, extra_body=body
                )
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self.takes.learn(body, error):
                    raise

    def _read(self, raw: object, meter: _Meter) -> Reply:
        from gradus.core.replies import read_reply, tokens_used

        self._count(tokens_used(raw), meter)
        said = read_reply(raw)
        if said is None:
            raise Unanswered(f"expected a chat completion, got {brief(raw)}", kind="MalformedReply")
        calls = tuple(map(self._plain_call, said.calls))
        if said.text is None and not calls:
            if said.reason == "length":
                raise CallError("the answer reached max_tokens before its first word; raise max_tokens", kind="Length")
            raise Unanswered(f"the reply has no content (finish_reason {said.reason!r})", kind="MalformedReply")
        price = self.usage.price
        cost = None if price is None or meter.unmetered else price.cost(meter.prompt, meter.completion)
        usage = Usage(prompt_tokens=meter.prompt, completion_tokens=meter.completion, cost=cost)
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
        """Returns a server's message, fit to be stored: without the key and without half characters."""
        key = self.client.api_key
        text = whole_characters(text)
        return text.replace(key, "[key]") if len(key) > 7 else text

    def _count(self, tokens: tuple[int, int] | None, meter: _Meter) -> None:
        if tokens is None:
            meter.unmetered += 1
            self.usage.unmetered += 1
            return
        meter.prompt += tokens[0]
        meter.completion += tokens[1]
        self.usage.prompt_tokens += tokens[0]
        self.usage.completion_tokens += tokens[1]
