"""The Responses API: its requests as chat completions, and its answers. Frameworks such as the OpenAI Agents SDK speak it unless they are set otherwise."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from gradus.core import Message, Usage
from gradus.core.values import Json, JsonDict
from gradus.interop.serving.answers import ChatAnswer, Choice, arguments_text, event, in_pieces, pieces, usage_of
from gradus.interop.serving.requests import ChatRequest, shared_fields, validated

# They shape a response of OpenAI's own models.
_WITHOUT_EFFECT = frozenset(["include", "truncation", "reasoning"])


class _Item(BaseModel):
    """An item of the input: a message, a call or its result; a reasoning has no place in a chat."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Any = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None


class _FlatTool(BaseModel):
    """A tool whose function stands beside its type."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    strict: bool | None = None


class _Format(BaseModel):
    format: Any = None


class _ResponseBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    input: str | list[_Item]
    instructions: str | None = None
    tools: list[_FlatTool] | None = None
    max_output_tokens: Any = None
    text: _Format | None = None
    tool_choice: Any = None


def chat_body(body: Json) -> Json:
    """Returns the body of the chat completion that a response asks for. What keeps a conversation on the server is refused.

    Raises ApiError for items that no message can hold.
    """
    request = validated(_ResponseBody, body)
    items = [_Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    for item in items:
        _add(messages, item)
    return {
        **shared_fields(request, _WITHOUT_EFFECT),
        "messages": messages,
        "tools": [{"type": tool.type, "function": tool.model_extra} for tool in request.tools or ()],
        "max_tokens": request.max_output_tokens,
        "tool_choice": _nested(request.tool_choice, "function"),
        "response_format": _nested(request.text.format if request.text else None, "json_schema"),
    }


def _nested(value: Any, kind: str) -> Any:
    """Returns what stands flat in a response as chat completions nest it: the fields of ``kind`` under its name."""
    if not isinstance(value, Mapping):
        return value
    fields = cast(Json, value)
    return {"type": kind, kind: fields} if fields.get("type") == kind else fields


def _add(messages: list[JsonDict], item: _Item) -> None:
    """Add an item to the messages. Calls belong to the answer before them."""
    if item.type == "message":
        messages.append({"role": item.role, "content": item.content})
    elif item.type == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
    elif item.type == "function_call":
        # Calls come as items of their own; in a chat they belong to an answer.
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.name, "arguments": item.arguments}
        messages[-1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})


def response_reply(number: int, request: ChatRequest, answers: Sequence[ChatAnswer]) -> JsonDict:
    """A whole response: its text, then its calls."""
    (answer,) = answers
    cut = answer.finish == "length"
    usage = usage_of(answers)
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": request.model,
        "output": list(_items(number, answer.message)),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def response_events(number: int, request: ChatRequest, choices: Sequence[Choice]) -> AsyncIterator[str]:
    """A response in server-sent events: each item begins, comes in pieces, and ends; the last event holds the whole response."""
    (choice,) = choices
    sequence = itertools.count()

    def sent(kind: str, **fields: Any) -> str:
        return event({"type": kind, "sequence_number": next(sequence), **fields}, name=kind)

    nothing = ChatAnswer(message=Message(role="assistant"), finish="stop", usage=Usage())
    begun: JsonDict = {**response_reply(number, request, [nothing]), "status": "in_progress", "output": []}
    yield sent("response.created", response=begun)
    try:
        text = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
        is_open = False
        async for part in pieces(choice):
            if isinstance(part, ChatAnswer):
                reply = response_reply(number, request, [part])
                for index, item in enumerate(reply["output"]):
                    if item["type"] == "message" and not is_open:
                        yield _opening(sent, number)
                    for kind, fields in _ends(index, item, text):
                        yield sent(kind, **fields)
                yield sent("response.completed" if part.finish != "length" else "response.incomplete", response=reply)
            else:
                if not is_open:
                    yield _opening(sent, number)
                is_open = True
                yield sent("response.output_text.delta", **text, delta=part)
    finally:
        choice.leave()


def _opening(sent: Callable[..., str], number: int) -> str:
    """The events that begin a text."""
    item: JsonDict = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "in_progress"}
    item["content"] = []
    part: JsonDict = {"type": "output_text", "text": "", "annotations": []}
    first = sent("response.output_item.added", output_index=0, item=item)
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    return first + sent("response.content_part.added", **place, part=part)


def _ends(index: int, item: Json, text: Json) -> Iterator[tuple[str, Json]]:
    """The events that end an item; those of a call begin it too."""
    if item["type"] == "message":
        (part,) = item["content"]
        yield "response.output_text.done", {**text, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**text, "part": part}
    else:
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield "response.output_item.added", {"output_index": index, "item": begun}
        place = {"item_id": item["id"], "output_index": index}
        for piece in in_pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        end = {**place, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", end
    yield "response.output_item.done", {"output_index": index, "item": item}


def _items(number: int, message: Message) -> Iterator[JsonDict]:
    if message.content or not message.calls:
        text: JsonDict = {"type": "output_text", "text": message.content, "annotations": []}
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        yield {**head, "content": [text]}
    for place, call in enumerate(message.calls):
        head = {"id": f"fc_{number}_{place}", "type": "function_call", "status": "completed"}
        yield {**head, "call_id": call.id, "name": call.name, "arguments": arguments_text(call)}
