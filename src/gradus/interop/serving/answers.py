"""Answers on their way, and in the form of chat completions, whole or in pieces."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from gradus.core import Action, Message, StopReason, ToolCall, Usage
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.interop.serving.requests import ChatRequest

LEAST = -9999.0  # JSON knows no infinity
_PIECE = re.compile(r"\s*\S+\s*|\s+")


@frozen_record
class ChatAnswer:
    """A whole answer."""

    # As the client gets it.
    message: Message
    # Why it ended: stop, length or tool_calls.
    finish: str
    usage: Usage
    # Text and log-prob of each token, if the client asked for them.
    tokens: Sequence[tuple[str, float]] = ()


class Choice(Protocol):
    """An answer on its way."""

    def parts(self) -> AsyncIterator[str | ChatAnswer]:
        """Texts as they come, then the whole answer. Raises what went wrong."""
        ...

    def leave(self) -> None:
        """Let it go: its client has its answer, or has left."""
        ...


async def whole_answers(choices: Sequence[Choice]) -> Sequence[ChatAnswer]:
    """Wait for the ends of all answers."""
    try:
        return await asyncio.gather(*map(_whole_answer, choices))
    finally:
        for choice in choices:
            choice.leave()


async def _whole_answer(choice: Choice) -> ChatAnswer:
    async for part in choice.parts():
        if isinstance(part, ChatAnswer):
            return part
    raise AssertionError("expected an answer at the end")


def answer_of(action: Action, message: Message | None, call_id: Callable[[int], str]) -> ChatAnswer:
    """An answer as a client gets it. ``message``: with the calls that were read in it; calls that cannot be read are text.

    ``call_id``: gives the id of a call at its place.
    """
    # A call that cannot be read is shown as text: a client could not carry it out.
    is_readable = message is not None and message.calls and not any(call.fault for call in message.calls)
    answered = Message(role="assistant", content=action.text)
    if message is not None and is_readable:
        calls = [replace(call, id=call_id(place)) for place, call in enumerate(message.calls)]
        answered = Message(role="assistant", content=message.content.strip(), calls=tuple(calls))
    finish = "tool_calls" if answered.calls else "stop"
    logprobs = action.tokens.logprobs if action.spelled and action.tokens else ()
    return ChatAnswer(
        message=answered,
        finish="length" if action.stop is StopReason.TOKEN_LIMIT else finish,
        usage=action.usage or Usage(),
        tokens=list(zip(action.spelled, logprobs, strict=True)),
    )


def _content(message: Message) -> JsonDict:
    """What a message of a chat says, and its calls."""
    if not message.calls:
        return {"content": message.content}
    calls = [
        {
            "index": place,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for place, call in enumerate(message.calls)
    ]
    return {"content": message.content or None, "tool_calls": calls}


def _head(number: int, request: ChatRequest) -> JsonDict:
    return {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": request.model}


def chat_reply(number: int, request: ChatRequest, answers: Sequence[ChatAnswer]) -> JsonDict:
    """A whole ``chat.completion``."""
    choices = [
        {
            "index": index,
            "finish_reason": answer.finish,
            "logprobs": _logprobs(answer),
            "message": {"role": "assistant", "refusal": None, **_content(answer.message)},
        }
        for index, answer in enumerate(answers)
    ]
    head = _head(number, request)
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage_of(answers)}


async def chat_events(number: int, request: ChatRequest, choices: Sequence[Choice]) -> AsyncIterator[str]:
    """A ``chat.completion`` in server-sent events: texts as they come, the rest with the reason of the end, the usage if asked for."""
    head = {**_head(number, request), "object": "chat.completion.chunk"}
    answers: list[ChatAnswer] = []
    try:
        for index, choice in enumerate(choices):
            role = {"role": "assistant"}
            async for part in pieces(choice):
                if isinstance(part, ChatAnswer):
                    answers.append(part)
                    deltas = [*_call_deltas(part.message), {}]
                else:
                    deltas = [{"content": part}]
                for delta in deltas:
                    finish = part.finish if isinstance(part, ChatAnswer) and not delta else None
                    chunk = {"index": index, "delta": {**role, **delta}, "finish_reason": finish}
                    if finish and isinstance(part, ChatAnswer):
                        chunk["logprobs"] = _logprobs(part)
                    yield event({**head, "choices": [chunk]})
                    role = {}
        if (request.stream_options or {}).get("include_usage"):
            yield event({**head, "choices": [], "usage": usage_of(answers)})
        yield "data: [DONE]\n\n"
    finally:
        for choice in choices:
            choice.leave()


async def pieces(choice: Choice) -> AsyncIterator[str | ChatAnswer]:
    """Texts as they come, what is still to be said in pieces, then the whole answer. What was sent is not sent again."""
    sent = 0
    async for part in choice.parts():
        if isinstance(part, ChatAnswer):
            for piece in in_pieces(part.message.content[sent:]):
                yield piece
        else:
            sent += len(part)
        yield part


def _call_deltas(message: Message) -> Iterator[JsonDict]:
    """Each call's name, then its arguments in pieces."""
    for place, call in enumerate(message.calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": place, "id": call.id, "type": "function", "function": function}]}
        for piece in in_pieces(arguments_text(call)):
            yield {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}


def _logprobs(answer: ChatAnswer) -> JsonDict | None:
    if not answer.tokens:
        return None
    content = [
        {"token": token, "logprob": max(logprob, LEAST), "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in answer.tokens
    ]
    return {"content": content, "refusal": None}


def in_pieces(text: str) -> list[str]:
    """Returns a text in the pieces that a stream sends: words with the space behind them."""
    return _PIECE.findall(text)


def event(body: Json, *, name: str = "") -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(body, ensure_ascii=False)}\n\n"


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call, as the protocol has them: JSON in a text."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def usage_of(answers: Sequence[ChatAnswer]) -> dict[str, int]:
    """The protocol's ``usage`` of the answers to one prompt."""
    read = max((answer.usage.prompt_tokens for answer in answers), default=0)
    sampled = sum(answer.usage.completion_tokens for answer in answers)
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
