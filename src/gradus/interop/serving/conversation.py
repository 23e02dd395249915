"""Chat messages to token ids, in the same pieces that a policy is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from gradus.interop.serving.openai_schema import ApiError
from gradus.policies.local.loading import LoadedModel

__all__ = ["conversation_ids"]


def conversation_ids(loaded: LoadedModel, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ids of the whole conversation, up to where the model speaks. Without a system message it gets the one it was trained with.

    System, user and assistant in turn are put together by the renderer, which is what rollouts and training do; any other order
    is left to the chat template. Raises ApiError for what neither can render.
    """
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
        ids += loaded.tokenizer.encode(answer, add_special_tokens=False, split_special_tokens=True)
        ids += [renderer.stop_id, *renderer.following(question, cached=False)]
    return ids


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
