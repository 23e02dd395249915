"""From conversation to token ids, so that a later prompt extends the earlier tokens exactly."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

from gradus.core import Message
from gradus.core.values import Json
from gradus.policies.local.chat_template import CACHED, ChatTemplate
from gradus.policies.local.text_ids import TokenIds
from gradus.policies.local.tool_renderer import Messages, ToolRenderer, Tools, UnreadableToolsError
from gradus.policies.nano.model import NANO_TEMPLATE


class ChatRenderer(ChatTemplate):
    """Renders conversations by a chat template, with tools and without. Its arguments are those of
    :class:`~gradus.policies.local.chat_template.ChatTemplate`."""

    @cached_property
    def _by_tools(self) -> Callable[[str], ToolRenderer]:
        return lru_cache(maxsize=CACHED)(self._make_with_tools)

    def for_tools(self, tools: Tools, messages: Messages = ()) -> ChatRenderer | ToolRenderer:
        """The renderer of an episode with these tools; itself if there are none, and no calls in the messages either.

        A template that knows no tools has its calls in lines of JSON. Raises ConfigError for one that rewrites earlier calls.
        """
        has_calls = any(message.calls or message.role == "tool" for message in messages)
        return self._with_tools(tools) if tools or has_calls else self

    def _with_tools(self, tools: Tools) -> ToolRenderer:
        return self._by_tools(json.dumps([dict(tool) for tool in tools]))

    def _make_with_tools(self, tools: str) -> ToolRenderer:
        # A nano model was trained from nothing, on calls in JSON: its template has no place for tools.
        untaught = self.plain or self.tokenizer.chat_template == NANO_TEMPLATE
        as_json = self.tool_calls == "json"
        plain = as_json or (self.tool_calls == "auto" and untaught)
        try:
            return ToolRenderer(self, json.loads(tools), plain=plain, listed=as_json)
        except UnreadableToolsError as error:
            if self.tool_calls == "template":
                raise
            problem = str(error).partition(";")[0]
            warnings.warn(f'{problem}: calls are lines of JSON, as with model.tool_calls = "json"', stacklevel=2)
            return ToolRenderer(self, json.loads(tools), plain=True, listed=True)

    def first(self, system_prompt: str, observation: str | Messages) -> TokenIds:
        """Ids of the complete prompt of a training sequence, up to where the model speaks."""
        if isinstance(observation, str):
            return self.first_prompt(system_prompt, observation)
        return self._with_tools(()).first(system_prompt, observation)

    def following(self, observation: str | Messages) -> TokenIds:
        """Ids between the last sampled stop token and where the model speaks again."""
        if isinstance(observation, str):
            return self.next_prompt(observation)
        return self._with_tools(()).following(observation)

    def conversation(self, system_prompt: str, messages: Messages) -> TokenIds:
        """Ids of any conversation that the template can render, up to where the model speaks."""
        return self._with_tools(()).conversation(system_prompt, messages)


def answer_message(renderer: ChatRenderer, tools: Sequence[Json], text: str) -> Message | None:
    """An answer as a message with its calls; None in an episode without tools."""
    speaker = renderer.for_tools(tools)
    return speaker.read(text) if isinstance(speaker, ToolRenderer) else None
