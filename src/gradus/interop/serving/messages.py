"""The Messages API of Anthropic's clients: its requests as chat completions, and its answers, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gradus.core.values import Json, JsonDict
from gradus.interop.serving.answers import ChatAnswer, Choice, arguments_text, event, in_pieces, pieces, usage_of
from gradus.interop.serving.requests import ApiError, ChatRequest, shared_fields, validated

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
# They shape answers of Anthropic's own models.
_WITHOUT_EFFECT = frozenset(["thinking", "cache_control", "betas", "inference_geo"])


class _Block(BaseModel):
    """A part of a message; a thought has no place in a chat."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = ""
    id: str = ""
    name: str = ""
    input: JsonDict = {}
    tool_use_id: str = ""
    content: Any = None


class _MessageTurn(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    name: str
    description: str = ""
    input_schema: JsonDict

    def as_function(self) -> JsonDict:
        """The tool as chat completions have it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class _Choice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""


class _MessagesBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    messages: list[_MessageTurn]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    stop_sequences: list[str] | None = None


def chat_body(body: Json) -> Json:
    """Returns the body of the chat completion that a request for a message asks for. Raises ApiError for what cannot be one."""
    request = validated(_MessagesBody, body)
    system = _text(request.system or "")
    messages: list[JsonDict] = [{"role": "system", "content": system}] if system else []
    for turn in request.messages:
        messages += _messages(turn)
    return {
        **shared_fields(request, _WITHOUT_EFFECT),
        "messages": messages,
        "tools": [tool.as_function() for tool in request.tools or ()],
        "tool_choice": _tool_choice(request.tool_choice),
        "stop": request.stop_sequences or None,
    }


def _tool_choice(choice: _Choice | None) -> Any:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _text(content: Any) -> str:
    """The text of a content, which may come in blocks."""
    if isinstance(content, str):
        return content
    blocks = validated(list[_Block], content or [], "content")
    return "".join(block.text for block in blocks)


def _messages(turn: _MessageTurn) -> Iterator[JsonDict]:
    """The messages of a turn: results of tools are messages of their own, and come first."""
    blocks = turn.content if isinstance(turn.content, list) else [_Block(type="text", text=turn.content)]
    text = "".join(block.text for block in blocks if block.type == "text")
    for block in blocks:
        if block.type == "tool_result":
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
    uses = [block for block in blocks if block.type == "tool_use"]
    calls = [{"id": use.id, "function": {"name": use.name, "arguments": use.input}} for use in uses]
    if calls:
        yield {"role": turn.role, "content": text, "tool_calls": calls}
    # A turn of results alone has nothing else to say; any other empty turn is refused as one.
    elif text or not any(block.type == "tool_result" for block in blocks):
        yield {"role": turn.role, "content": text}


def message_reply(number: int, request: ChatRequest, answers: Sequence[ChatAnswer]) -> JsonDict:
    """A whole message: its text, then its calls."""
    (answer,) = answers
    usage = usage_of(answers)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": list(_content(answer)),
        "stop_reason": _STOP_REASONS[answer.finish],
        "stop_sequence": None,
        "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
    }


def _content(answer: ChatAnswer) -> Iterator[JsonDict]:
    message = answer.message
    if message.content or not message.calls:
        yield {"type": "text", "text": message.content}
    for call in message.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}


async def message_events(number: int, request: ChatRequest, choices: Sequence[Choice]) -> AsyncIterator[str]:
    """A message in server-sent events: each block begins, comes in pieces, and ends."""
    (choice,) = choices
    head: JsonDict = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
    }
    usage = {"input_tokens": 0, "output_tokens": 0}
    yield _event("message_start", message={**head, "stop_reason": None, "stop_sequence": None, "usage": usage})
    try:
        blocks = 0
        async for part in pieces(choice):
            if not isinstance(part, ChatAnswer):
                if not blocks:
                    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
                    blocks = 1
                yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": part})
                continue
            if blocks:
                yield _event("content_block_stop", index=0)
            for index, call in enumerate(part.message.calls, blocks):
                block: JsonDict = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                yield _event("content_block_start", index=index, content_block=block)
                for piece in in_pieces(arguments_text(call)):
                    delta = {"type": "input_json_delta", "partial_json": piece}
                    yield _event("content_block_delta", index=index, delta=delta)
                yield _event("content_block_stop", index=index)
            reply = message_reply(number, request, [part])
            end = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
            yield _event("message_delta", delta=end, usage=reply["usage"])
        yield _event("message_stop")
    finally:
        choice.leave()


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, name=kind)


def error_body(error: ApiError) -> JsonDict:
    """An error as Anthropic's clients read it."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": error.message}}
