"""Chat messages to token ids, in the same pieces that a policy is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradus.core import ConfigError, Message, PolicyError, ToolCall
from gradus.interop.serving.openai_schema import ApiError
from gradus.policies.local.conversation import prompt_ids
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.tool_renderer import ToolRenderer

_CHARACTERS = 8  # of a token, at most on average: text has about four


def check_length(loaded: LoadedModel, texts: Iterable[str], param: str) -> None:
    """Raises ApiError for what cannot fit the context. It is measured before it is split into tokens, which holds up the server."""
    context, length = loaded.context, sum(map(len, texts))
    if context is not None and length > _CHARACTERS * context:
        most = _CHARACTERS * context
        said = f"the prompt has {length} characters; a context of {context} tokens takes at most {most}"
        raise ApiError(said, param=param, code="context_length_exceeded")


def conversation_ids(
    loaded: LoadedModel, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Ids of the whole conversation, up to where the model speaks. Without a system message it gets the one it was trained with.

    Raises ApiError for what cannot be read or rendered.
    """
    said = read_messages(messages)
    check_length(loaded, [json.dumps(tools), *(message.content for message in said)], "messages")
    called = any(message.role == "tool" or message.calls for message in said)
    renderer = tool_renderer(loaded, tools) if tools or called else loaded.renderer
    try:
        return list(prompt_ids(renderer, loaded.settings.system_prompt, said, cached=False))
    except PolicyError as error:
        raise ApiError(f"messages: {error}", param="messages") from error


def following_ids(loaded: LoadedModel, said: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """Ids between the stop token of the last answer and where the model speaks again, behind what the user said."""
    renderer = loaded.renderer.for_tools(tools)
    return list(prompt_ids(renderer, "", [Message(role="user", content=said)], later=True, cached=False))


def tool_renderer(loaded: LoadedModel, tools: Sequence[Mapping[str, Any]]) -> ToolRenderer:
    """Returns what renders and reads calls of these tools. Raises ApiError for what cannot be a tool, or not with this chat template."""
    check_tools(tools)
    try:
        renderer = loaded.renderer.for_tools(tools)
    except ConfigError as error:
        raise ApiError(str(error), param="tools", code="unsupported_parameter") from error
    if not isinstance(renderer, ToolRenderer):
        raise ApiError("messages refer to calls of tools, but tools is empty; send the tools again", param="tools")
    return renderer


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
        raise ApiError(f"messages: the arguments of a call are no JSON object: {error}", param="messages") from error


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
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise ApiError("messages: content must be text, or a list of text parts", param="messages", code="invalid_value")
