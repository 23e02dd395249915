"""Chat messages to token ids, in the same pieces that a policy is trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError, Message, ToolCall
from gradus.core.calls import write_calls
from gradus.interop.serving.openai_schema import ApiError
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.tool_renderer import ToolRenderer


def conversation_ids(
    loaded: LoadedModel, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Ids of the whole conversation, up to where the model speaks. Without a system message it gets the one it was trained with.

    System, user and assistant in turn are put together by the renderer, which is what rollouts and training do; any other order
    is left to the chat template. Raises ApiError for what neither can render.
    """
    if tools or any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return _with_tools(loaded, messages, tools)
    said = [(_role(message), _content(message)) for message in messages]
    if said[0][0] != "system" and loaded.settings.system_prompt:
        said.insert(0, ("system", loaded.settings.system_prompt))  # what the model was trained with
    system = said[0][1] if said[0][0] == "system" else ""
    turns = said[1:] if said[0][0] == "system" else said
    roles = [role for role, _ in turns]
    if roles != [("user", "assistant")[place % 2] for place in range(len(roles))] or len(roles) % 2 == 0:
        return _by_template(loaded, said)
    renderer = loaded.renderer
    ids = list(renderer.first(system, turns[0][1], cached=False))
    for (_, answer), (_, question) in zip(turns[1::2], turns[2::2], strict=True):
        ids += [*_answered(renderer, answer), *renderer.following(question, cached=False)]
    return ids


def following_ids(loaded: LoadedModel, said: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """Ids between the stop token of the last answer and where the model speaks again, behind what the user said."""
    if not tools:
        return list(loaded.renderer.following(said, cached=False))
    return _heard(renderer_of(loaded, tools), "", [Message(role="user", content=said)], True)


def _answered(renderer: ChatRenderer | ToolRenderer, text: str, calls: Sequence[ToolCall] = ()) -> tuple[int, ...]:
    """Ids of an earlier answer, as training has them. A reply's text begins with what the model said in front of its answer."""
    chat = renderer.chat if isinstance(renderer, ToolRenderer) else renderer
    text = text.removeprefix(chat.lead)
    if calls:
        text = f"{text}\n{write_calls(calls)}".strip()
    return renderer.encode_answer(text, [call.id for call in calls], cached=False)


def renderer_of(loaded: LoadedModel, tools: Sequence[Mapping[str, Any]]) -> ToolRenderer:
    """Returns what renders and reads calls of these tools. Raises ApiError for what cannot be a tool, or not with this chat template."""
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise ApiError('tools: expected {"type": "function", "function": {"name": ...}}', param="tools")
    try:
        renderer = loaded.renderer.for_tools(tools)
    except ConfigError as error:
        raise ApiError(str(error), param="tools", code="unsupported_parameter") from error
    if not isinstance(renderer, ToolRenderer):
        raise ApiError("messages refer to calls of tools, but tools is empty; send the tools again", param="tools")
    return renderer


def _with_tools(
    loaded: LoadedModel, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[int]:
    """A conversation in which tools may be called, put together from the pieces that a policy is trained on."""
    renderer = renderer_of(loaded, tools)
    names = _names(messages)
    said = [_message(message, names) for message in messages]
    system = said.pop(0).content if said[0].role == "system" else loaded.settings.system_prompt
    if not said or said[-1].role == "assistant":
        raise ApiError("messages: the last message must be the user's or a tool's", param="messages")
    ids: list[int] = []
    pending: list[Message] = []
    for message in said:
        if message.role != "assistant":
            pending.append(message)
            continue
        ids += _heard(renderer, system, pending, bool(ids))
        pending = []
        ids += _answered(renderer, message.content, message.calls)
    return ids + _heard(renderer, system, pending, bool(ids))


def _heard(renderer: ToolRenderer, system: str, messages: Sequence[Message], later: bool) -> list[int]:
    try:
        return list(renderer.following(messages) if later else renderer.first(system, messages))
    except TemplateError as error:
        raise ApiError(f"the chat template cannot render these messages: {error}", param="messages") from error


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


def _by_template(loaded: LoadedModel, said: Sequence[tuple[str, str]]) -> list[int]:
    if loaded.tokenizer.chat_template is None:
        raise ApiError("this model has no chat template: give system, user and assistant in turn", param="messages")
    try:
        return loaded.renderer.conversation([{"role": role, "content": text} for role, text in said])
    except TemplateError as error:
        raise ApiError(f"the chat template cannot render these messages: {error}", param="messages") from error
