"""Chat messages to token ids, in the same pieces that a policy is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradus.core import ConfigError, Message, PolicyError
from gradus.interop.serving.messages import check_tools, read_messages
from gradus.interop.serving.requests import ApiError
from gradus.policies.local.conversation import Speaker, prompt_ids
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.tool_renderer import ToolRenderer

_CHARACTERS = 8  # of a token, at most on average: text has about four
Tools = Sequence[Mapping[str, Any]]


def conversation_ids(loaded: LoadedModel, messages: Sequence[Mapping[str, Any]], tools: Tools = ()) -> list[int]:
    """Ids of the whole conversation, up to where the model speaks. Without a system message it gets the one it was trained with.

    Raises ApiError for what cannot be read or rendered.
    """
    said = read_messages(messages)
    check_length(loaded, [json.dumps(tools), *(message.content for message in said)], "messages")
    try:
        return list(prompt_ids(_renderer(loaded, tools, said), loaded.settings.system_prompt, said, cached=False))
    except PolicyError as error:
        raise ApiError(f"messages: {error}", param="messages") from error


def _renderer(loaded: LoadedModel, tools: Tools, said: Sequence[Message]) -> Speaker:
    """Returns the renderer of a conversation with these tools. Raises ApiError if the chat template knows none."""
    check_tools(tools)
    try:
        renderer = loaded.renderer.for_tools(tools)
    except ConfigError as error:
        raise ApiError(str(error), param="tools", code="unsupported_parameter") from error
    called = any(message.role == "tool" or message.calls for message in said)
    if called and not isinstance(renderer, ToolRenderer):
        raise ApiError("messages refer to calls of tools, but tools is empty; send the tools again", param="tools")
    return renderer


def check_length(loaded: LoadedModel, texts: Iterable[str], param: str) -> None:
    """Raises ApiError for what cannot fit the context. It is measured before it is split into tokens, which holds up the server."""
    context, length = loaded.context, sum(map(len, texts))
    if context is not None and length > _CHARACTERS * context:
        most = _CHARACTERS * context
        said = f"the prompt has {length} characters; a context of {context} tokens takes at most {most}"
        raise ApiError(said, param=param, code="context_length_exceeded")
