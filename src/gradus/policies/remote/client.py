"""What a remote model's calls cost, and what their replies say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import Usage


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


def read_answer(raw: object, usage: RemoteUsage, clean: Callable[[str], str]) -> Reply:
    """Returns what a parsed reply says, its texts without the key. Raises ValueError if it says nothing."""
    from gradus.core.replies import read_reply, tokens_used

    used, said = usage.of(tokens_used(raw)), read_reply(raw)
    if said is None:
        raise ValueError(f"expected a chat completion, got {brief(raw)}")
    calls, cut = tuple(_plain_call(call, clean) for call in said.calls), said.reason == "length"
    if said.text is None and not calls and not cut:
        raise ValueError(f"the reply has no content (finish_reason {said.reason!r})")
    return Reply(text=clean(said.text or ""), usage=used, cut=cut, calls=calls)


def _plain_call(call: Any, clean: Callable[[str], str]) -> Mapping[str, Any]:
    """A call as it goes back to the server with the next request."""
    function = getattr(call, "function", None)
    name, arguments = (clean(str(getattr(function, part, ""))) for part in ("name", "arguments"))
    return {"id": str(getattr(call, "id", "")), "type": "function", "function": {"name": name, "arguments": arguments}}


def brief(value: object) -> str:
    """The first 200 characters, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:199] + "…"
