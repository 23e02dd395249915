"""OpenAI's Responses API as chat completions: frameworks such as the OpenAI Agents SDK speak it unless they are told otherwise.

A request's items become messages, and an answer becomes items. What keeps a conversation on the server is refused.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradus.interop.agents.calls import Answered
from gradus.interop.serving.openai_schema import ApiError

_WITHOUT_EFFECT = ("include", "truncation", "reasoning")  # they shape an answer of OpenAI's own models
_numbers = itertools.count()


def chat_body(body: Any) -> Any:
    """Returns the body of the chat completion that a response asks for. Raises ApiError for items that no message can hold."""
    if not isinstance(body, Mapping):
        return body
    chat = {name: value for name, value in body.items() if name not in _WITHOUT_EFFECT}
    if chat.pop("stream", None):
        raise ApiError("responses are not streamed here; leave stream out, or use chat completions", param="stream")
    instructions, given = chat.pop("instructions", None), chat.pop("input", None)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(each, Mapping) for each in items):
        raise ApiError("input is a text or a list of items", param="input", code="invalid_value")
    chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        _add(chat["messages"], item)
    chat["tools"] = [
        {"type": each.get("type"), "function": {name: each[name] for name in each if name not in ("type", "strict")}}
        for each in chat.pop("tools", None) or ()
    ]
    chat["max_tokens"] = chat.pop("max_output_tokens", None)
    chat["response_format"] = (chat.pop("text", None) or {}).get("format")
    return chat


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the messages. Calls belong to the answer before them."""
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _text(item.get("content"))})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = {"role": "tool", "tool_call_id": item.get("call_id"), "content": _text(item.get("output"))}
        messages.append(output)
    elif kind != "reasoning":
        raise ApiError(f"input: an item of the type {kind!r} has no place in a chat", param="input")


def _text(content: Any) -> Any:
    """The content of a message; its parts are text by another name here."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text")
    return [{**each, "type": "text"} if each.get("type") in texts else each for each in content]


def response_body(model: str, answered: Answered, usage: Mapping[str, int]) -> dict[str, Any]:
    """Returns the answer as a response: its text, then its calls."""
    number = next(_numbers)
    cut = answered.finish == "length"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": model,
        "output": [*_output(answered, number)],
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


def _output(answered: Answered, number: int) -> Iterable[dict[str, Any]]:
    said = answered.message
    calls: Sequence[Any] = said.calls
    if said.content or not calls:
        content = [{"type": "output_text", "text": said.content, "annotations": []}]
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        yield {**head, "content": content}
    for place, call in enumerate(calls):
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        head = {"id": f"fc_{number}_{place}", "type": "function_call", "status": "completed"}
        yield {**head, "call_id": call.id, "name": call.name, "arguments": arguments}
