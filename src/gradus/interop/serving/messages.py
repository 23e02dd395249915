"""Reads conversations as OpenAI's clients send them: messages of chat completions, and items of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Message, ToolCall
from gradus.interop.serving.requests import ApiError

_TEXTS = ("text", "input_text", "output_text")  # the same by three names
_WITHOUT_EFFECT = ("include", "truncation", "reasoning")  # they shape a response of OpenAI's own models


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for what cannot be a tool."""
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise ApiError('tools: expected {"type": "function", "function": {"name": ...}}', param="tools")


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of the protocol as ours. Raises ApiError for what cannot be one, and for a conversation that ends with the assistant."""
    names = _names(messages)
    said = [_message(message, names) for message in messages]
    if said[-1].role not in ("user", "tool"):
        raise ApiError("messages: the last message must be the user's or a tool's", param="messages")
    return said


def _tool_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) and call["function"].get("name")
        for call in calls
    ):
        raise ApiError("messages: tool_calls is a list of calls with a function that has a name", param="messages")
    return calls


def _names(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The names of the tools that were called, by the ids of calls."""
    return {str(call.get("id")): call["function"]["name"] for message in messages for call in _tool_calls(message)}


def _message(message: Mapping[str, Any], names: Mapping[str, str]) -> Message:
    """A message of the protocol. ``names``: of the tools, by the ids of calls."""
    calls = [_called(call) for call in _tool_calls(message)]
    if message.get("role") == "tool":
        call_id = str(message.get("tool_call_id") or "")
        if call_id not in names:
            raise ApiError(f"messages: no call has the id {call_id!r} that a tool's message answers", param="messages")
        return Message(role="tool", content=_content(message), call_id=call_id, name=names[call_id])
    content = "" if calls and message.get("content") is None else _content(message)
    return Message(role=_role(message), content=content, calls=tuple(calls))


def _called(call: Mapping[str, Any]) -> ToolCall:
    arguments = call["function"].get("arguments") or "{}"
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
        return ToolCall(name=str(call["function"]["name"]), arguments=dict(values), id=str(call.get("id") or ""))
    except (ValueError, TypeError, RecursionError) as error:
        raise ApiError(f"messages: the arguments of a call are not a JSON object: {error}", param="messages") from error


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if role == "developer":
        return "system"
    if role not in ("system", "user", "assistant"):
        raise ApiError(f"messages: expected the role system, user or assistant, got {role!r}", param="messages")
    return role


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") in _TEXTS for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise ApiError("messages: content must be text, or a list of text parts", param="messages", code="invalid_value")


def chat_body(body: Any) -> Any:
    """Returns the body of the chat completion that a response asks for. Frameworks such as the OpenAI Agents SDK speak the Responses API unless
    they are told otherwise. What keeps a conversation on the server is refused. Raises ApiError for items that no message can hold."""
    if not isinstance(body, Mapping):
        return body
    chat = {name: value for name, value in body.items() if name not in _WITHOUT_EFFECT}
    if chat.pop("stream", None):
        raise ApiError("responses are not streamed here; leave stream out, or use chat completions", param="stream")
    instructions, given = chat.pop("instructions", None), chat.pop("input", None)
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    tools, form = chat.pop("tools", None) or [], chat.pop("text", None) or {}
    for name, value in (("input", items), ("tools", tools), ("text", [form])):
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise ApiError(f"{name}: expected objects", param=name, code="invalid_value")
    chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        _add(chat["messages"], item)
    chat["tools"] = [
        {"type": each.get("type"), "function": {name: each[name] for name in each if name not in ("type", "strict")}}
        for each in tools
    ]
    chat["max_tokens"] = chat.pop("max_output_tokens", None)
    chat["response_format"] = form.get("format")
    return chat


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the messages. Calls belong to the answer before them."""
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        messages.append(output)
    elif kind != "reasoning":
        raise ApiError(f"input: an item of the type {kind!r} has no place in a chat", param="input")
