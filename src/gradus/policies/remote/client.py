"""What a remote model's calls cost, and what their replies say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from gradus.core import ConfigError, Usage
from gradus.core.frozen_record import frozen_record
from gradus.core.money import Account, Price
from gradus.core.replies import read_reply, tokens_used
from gradus.core.values import JsonDict

Record = JsonDict  # a message, or a call in one, as the protocol has it


@dataclass(kw_only=True)
class RemoteUsage:
    """The tokens and dollars that a policy's calls have used, those without an answer included if the server said so."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    # Replies without a token count.
    unmetered: int = 0
    price: Price | None = None
    account: Account = field(default_factory=Account)

    @property
    def cost(self) -> float | None:
        """US dollars; None if there is no price, or if a reply did not say how many tokens it took."""
        if self.price is None or self.unmetered:
            return None
        return self.price.cost(self.prompt_tokens, self.completion_tokens)

    def ceiling(self, request: object, longest: int | None) -> float:
        """The most US dollars that a request can cost: a token has a byte at least. Raises ConfigError if there is no bound."""
        if self.price is None:
            return 0.0
        if longest is None:
            if not self.account.is_limited:
                return 0.0
            raise ConfigError("a limit of costs needs the longest answer of a served model; set max_tokens")
        return self.price.cost(len(json.dumps(request, ensure_ascii=False).encode()), longest)

    def of(self, tokens: tuple[int, int] | None, ceiling: float = 0.0) -> Usage:
        """Count a reply; returns what it took. One without a token count is paid as its ``ceiling``."""
        if tokens is None:
            self.unmetered += 1
            self.account.pay(ceiling)
            return Usage(prompt_tokens=0, completion_tokens=0, cost=None)
        prompt, completion = tokens
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        cost = None if self.price is None else self.price.cost(prompt, completion)
        self.account.pay(cost or 0.0)
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cost=cost)


@frozen_record
class RemoteAnswer:
    """An answer of a chat model, and what it cost."""

    text: str
    usage: Usage
    # ``max_tokens`` ended it.
    cut: bool
    # Calls of tools, as they came.
    calls: tuple[Record, ...] = ()


def read_answer(raw: object, usage: RemoteUsage, clean: Callable[[str], str], ceiling: float = 0.0) -> RemoteAnswer:
    """Returns what a parsed reply says, its texts without the key. Raises ValueError if it says nothing."""
    cost = usage.of(tokens_used(raw), ceiling)
    reply = read_reply(raw)
    if reply is None:
        raise ValueError(f"expected a chat completion, got {brief(raw)}")
    calls = tuple(_plain_call(call, clean) for call in reply.calls)
    cut = reply.reason == "length"
    if reply.text is None and not calls and not cut:
        raise ValueError(f"the reply has no content (finish_reason {reply.reason!r})")
    return RemoteAnswer(text=clean(reply.text or ""), usage=cost, cut=cut, calls=calls)


def _plain_call(call: object, clean: Callable[[str], str]) -> Record:
    """A call as it goes back to the server with the next request."""
    function = getattr(call, "function", None)
    name = clean(str(getattr(function, "name", "")))
    arguments = clean(str(getattr(function, "arguments", "")))
    return call_record(str(getattr(call, "id", "")), name, arguments)


def call_record(call_id: str, name: str, arguments: str) -> Record:
    """A call as the protocol has it. ``arguments`` is JSON."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def brief(value: object) -> str:
    """The first 200 characters, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:199] + "…"
