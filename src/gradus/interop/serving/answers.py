"""Replies under way: tokens become text piece by piece, and text becomes OpenAI's choices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradus.core import Message, ToolCall, child_seed
from gradus.interop.serving.generation import Generation, Sampled
from gradus.interop.serving.openai_schema import ChatRequest, CompletionRequest
from gradus.policies.local.answer_text import RunningText, text_behind
from gradus.policies.local.renderers import ChatRenderer

_LEAST = -9999.0  # JSON knows no infinity


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some tokens and the text that they completed. ``finish`` is set on the last piece of a reply."""

    text: str
    tokens: Sequence[Sampled]
    finish: str | None = None


@dataclass(eq=False, kw_only=True)
class Reply:
    """One choice on its way. Text is held back while it could still become a stop string or half of a character."""

    generation: Generation
    arrived: asyncio.Queue[Sampled | Exception]
    tokenizer: Any
    renderer: ChatRenderer | None = None  # whose form the text of a chat has; without one it is what the tokens spell
    stops: Sequence[str] = ()
    read: Callable[[str], Message] | None = None  # reads calls of tools, if there are any
    tokens: list[Sampled] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces until the reply is finished. Raises what the model's thread raised."""
        running = self.renderer.running_text() if self.renderer else RunningText(self._decode)
        opened = self.renderer.opened if self.renderer else ""  # what the prompt says does not stop the answer
        pending: list[Sampled] = []
        held = ""  # could still become a stop string
        while self.finish_reason is None:
            token = await self._next()
            pending.append(token)
            if token.finish is None:
                held += running.add(token.id)
            if token.finish is not None or any(stop in held for stop in self.stops):
                told, self.text = self.text, self._ended(token)
                if self.finish_reason is not None:
                    yield Piece(text=text_behind(told, self.text), tokens=pending, finish=self.finish_reason)
                    return
                self.text = told
            ready = len(held) - max((_overlap(held, stop) for stop in self.stops), default=0)
            if piece := opened + held[:ready]:
                opened, held = "", held[ready:]
                self.text += piece
                yield Piece(text=piece, tokens=pending)
                pending = []

    async def finish(self) -> None:
        """Wait for the end."""
        async for _ in self.pieces():
            pass

    async def _next(self) -> Sampled:
        token = await self.arrived.get()
        if isinstance(token, Exception):
            raise token
        self.tokens.append(token)
        return token

    def _ended(self, last: Sampled) -> str:
        """The text as all tokens together spell it, up to a stop string; sets ``finish_reason`` if this is its end."""
        ids = self.token_ids[:-1] if last.finish == "stop" else self.token_ids
        whole = self._decode(ids)
        begin = len(self.renderer.opened) if self.renderer else 0
        places = [place for stop in self.stops if (place := whole.find(stop, begin)) >= 0]
        self.finish_reason = "stop" if places else last.finish
        self.generation.cancelled |= bool(places)
        return whole[: min(places, default=len(whole))]

    def _decode(self, ids: Sequence[int]) -> str:
        if self.renderer is not None:
            return self.renderer.decode(ids)
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @property
    def token_ids(self) -> list[int]:
        """All sampled ids, the stop token included."""
        return [token.id for token in self.tokens]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def chat_choice(asked: ChatRequest, reply: Reply) -> dict[str, Any]:
    """A whole choice of ``chat.completion``."""
    said, finish = _said(asked, reply)
    message = {"role": "assistant", "refusal": None, **said}
    return {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}


def _said(asked: ChatRequest, reply: Reply) -> tuple[dict[str, Any], str | None]:
    """The content and the calls of a reply, and why it ended: ``length`` also if there are calls before the cut. Calls that
    cannot be read are content. What the model calls beyond the most that were asked for is left out."""
    message = reply.read(reply.text) if reply.read else None
    wanted = message.calls[: asked.most_calls] if message else ()
    if message is None or not wanted or any(call.fault for call in wanted):
        return {"content": reply.text}, reply.finish_reason
    named = [
        replace(call, id=call.id or f"{child_seed(reply.generation.seed, 'call', place) % 16**9:09x}")
        for place, call in enumerate(wanted)
    ]
    finish = "length" if reply.finish_reason == "length" else "tool_calls"
    return {"content": message.content or None, "tool_calls": call_records(named)}, finish


def call_records(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls as the protocol has them."""
    return [
        {
            "index": place,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for place, call in enumerate(calls)
    ]


def completion_choice(asked: CompletionRequest, reply: Reply) -> dict[str, Any]:
    """A whole choice of ``text_completion``."""
    whole = Piece(text=reply.text, tokens=reply.tokens, finish=reply.finish_reason)
    return _text_choice(asked, reply, whole, first=True)


def chunk_choice(asked: ChatRequest | CompletionRequest, reply: Reply, piece: Piece, *, first: bool) -> dict[str, Any]:
    """A choice of one streamed event."""
    if isinstance(asked, CompletionRequest):
        return _text_choice(asked, reply, piece, first=first)
    said: dict[str, Any] = {"content": piece.text}
    finish = piece.finish
    if reply.read is not None:  # whether it is a call is known at the end
        said, finish = ({"content": ""}, None) if piece.finish is None else _said(asked, reply)
    return {"index": 0, "finish_reason": finish, "delta": {**({"role": "assistant"} if first else {}), **said}}


def _text_choice(asked: CompletionRequest, reply: Reply, piece: Piece, *, first: bool) -> dict[str, Any]:
    """A piece of a completion, with the ids and log-probs that were asked for."""
    choice: dict[str, Any] = {"index": 0, "text": piece.text, "finish_reason": piece.finish, "logprobs": None}
    if asked.logprobs is not None:
        choice["logprobs"] = {
            "tokens": [reply.tokenizer.decode([token.id]) for token in piece.tokens],
            "token_logprobs": [max(token.logprob, _LEAST) for token in piece.tokens],
            "top_logprobs": None,
            "text_offset": [],
        }
    if asked.return_token_ids:
        choice["token_ids"] = [token.id for token in piece.tokens]
        if first:
            choice["prompt_token_ids"] = list(reply.generation.prompt)
    return choice


def usage(reply: Reply) -> dict[str, int]:
    """Tokens read and sampled."""
    return token_counts(len(reply.generation.prompt), len(reply.tokens))


def token_counts(read: int, sampled: int) -> dict[str, int]:
    """The protocol's ``usage``."""
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
