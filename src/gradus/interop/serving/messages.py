"""Reads conversations as OpenAI's clients send them: messages of chat completions, and items of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, Json, TypeAdapter

from gradus.core import Message, ToolCall
from gradus.interop.serving.requests import ApiError, checked

_WITHOUT_EFFECT = ("include", "truncation", "reasoning")  # they shape a response of OpenAI's own models


class _Function(BaseModel):
    name: str = Field(min_length=1)
    arguments: Json[dict[str, Any]] | dict[str, Any] = {}


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text"]  # the same by three names
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


_MESSAGES, _TOOLS = TypeAdapter(list[_Message]), TypeAdapter(list[_Tool])


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for what cannot be a tool."""
    checked("tools", lambda: _TOOLS.validate_python(list(tools)))


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of the protocol as ours. Raises ApiError for what cannot be one, and for a conversation that ends with the assistant."""
    said = checked("messages", lambda: _MESSAGES.validate_python(list(messages)))
    if said[-1].role not in ("user", "tool"):
        raise ApiError("messages: the last message must be the user's or a tool's", param="messages")
    names = {call.id: call.function.name for message in said for call in message.tool_calls or ()}
    return [_message(message, names) for message in said]


def _message(message: _Message, names: Mapping[str, str]) -> Message:
    """A message of the protocol. ``names``: of the tools, by the ids of calls."""
    if message.role == "tool":
        call_id = message.tool_call_id
        if call_id not in names:
            raise ApiError(f"messages: no call has the id {call_id!r} that a tool's message answers", param="messages")
        return Message(role="tool", content=message.text, call_id=call_id, name=names[call_id])
    if message.content is None and not message.tool_calls:
        raise ApiError(f"messages: a message of the {message.role} has no content", param="messages")
    calls = [
        ToolCall(name=call.function.name, arguments=call.function.arguments, id=call.id)
        for call in message.tool_calls or ()
    ]
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=message.text, calls=tuple(calls))


def chat_body(body: Any) -> Any:
    """Returns the body of the chat completion that a response asks for. Frameworks such as the OpenAI Agents SDK speak the Responses API unless
    they are told otherwise. What keeps a conversation on the server is refused. Raises ApiError for items that no message can hold."""
    try:
        return _chat_body(body)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ApiError(f"input, tools and text hold objects: {error}", param="input", code="invalid_value") from error


def _chat_body(body: Any) -> Any:
    chat = {name: value for name, value in body.items() if name not in _WITHOUT_EFFECT}
    if chat.pop("stream", None):
        raise ApiError("responses are not streamed here; leave stream out, or use chat completions", param="stream")
    instructions, given = chat.pop("instructions", None), chat.pop("input", None)
    chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        _add(chat["messages"], item)
    chat["tools"] = [
        {"type": each.get("type"), "function": {name: each[name] for name in each if name not in ("type", "strict")}}
        for each in chat.get("tools") or []
    ]
    chat["max_tokens"] = chat.pop("max_output_tokens", None)
    chat["response_format"] = (chat.pop("text", None) or {}).get("format")
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
