"""Conversations with tools in token ids: schemas in the first prompt, calls in answers, results in what follows.

The pieces are cut out of what the chat template itself writes, as in :mod:`gradus.policies.local.renderers`. When a renderer is
built, the template is asked for a call and its result: that shows whether it knows tools, in which form it writes a call, which
token ends it, and whether the pieces add up to what the template writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError, Message, ToolCall
from gradus.core.calls import FORMS, read_message, write_calls
from gradus.policies.local.text_ids import close_thought

if TYPE_CHECKING:
    from gradus.policies.local.renderers import ChatRenderer

_NAME, _KEY, _VALUE, _RESULT, _USER, _ANSWER, _QUESTION = (
    f"zq{word}qz" for word in ("tool", "key", "value", "result", "user", "said", "asked")
)
_PROBE = ToolCall(name=_NAME, arguments={_KEY: _VALUE}, id="zqcallid0")
_WAY_OUT = 'write calls as plain JSON with model.tool_calls = "json", or give the tokenizer a chat template with tools'


class ToolRenderer:
    """Renders conversations with ``tools`` (JSON schemas), and reads calls in answers.

    ``plain``: calls are lines of JSON and results are messages of the user, whatever the template knows; ``listed`` then puts
    the schemas behind the system prompt. Text that a template leaves out in front of a call is not part of an encoded answer.

    Raises:
        ConfigError: the template cannot render tools, their calls or their results, writes calls in a form that nobody can read
            back, or rewrites them as the conversation goes on. The message names the way out.
    """

    def __init__(self, chat: ChatRenderer, tools: Sequence[Mapping[str, Any]], *, plain: bool, listed: bool) -> None:
        self.chat, self.tools, self.plain = chat, tuple(tools), plain
        self._listing = tool_listing(tools) if plain and listed else ""
        self.form, self.several = "json", True
        self.stop_id = chat.stop_id
        self._frame = chat.frame_tokens()
        if plain or not tools:
            return
        self.form, self._stop_text = self._probe()
        self._frame |= {self._stop_text}
        self._call_stop = chat.ids.encode(self._stop_text)[0]
        chat.add_stop(self._call_stop)
        self.several = self._takes_several()
        if not chat.keep_history:
            self._check_history()

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self.chat.stop_ids

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer | ToolRenderer:
        """The renderer of an episode with these tools."""
        return self.chat.for_tools(tools)

    def first(self, system_prompt: str, observation: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids of the whole prompt of a training sequence, up to where the model speaks."""
        messages = _messages(observation)
        if self.plain:
            return self.chat.first("\n\n".join(filter(None, (system_prompt, self._listing))), _joined(messages))
        return tuple(self.chat.ids.encode_marked(self.render(messages, system=system_prompt)))

    def following(self, observation: str | Sequence[Message]) -> tuple[int, ...]:
        """Ids between the last sampled stop token and where the model speaks again: results of tools, or what the user says."""
        messages = _messages(observation)
        if self.plain:
            return self.chat.following(_joined(messages))
        text, stop = self._following(messages)
        # Encoded behind its stop token: some tokenizers put a space in front of a text's first word.
        return tuple(self.chat.ids.encode_marked(stop + text)[1:])

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action, stop token left out."""
        return self.chat.decode(action_ids)

    def read(self, text: str) -> Message:
        """An answer with its calls, in the template's own form."""
        message = read_message(text, self.form, self.tools)
        calls = message.calls
        if len(calls) > 1 and not self.several:
            error = f"this model's chat template takes one call an answer, got {len(calls)}"
            calls = tuple(replace(call, fault="malformed", error=error) for call in calls)
        return replace(message, calls=calls)

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Ids of an answer as the template writes it, stop token included. Calls in ``text`` may have any known form."""
        read = (read_message(text, form, self.tools) for form in ("json", self.form, None))
        message = next((each for each in read if each.calls and all(call.fault is None for call in each.calls)), None)
        if message is None:
            return self.chat.encode_answer(text)
        if self.plain:
            kept = read_message(text, "json").calls == message.calls
            return self.chat.encode_answer(text if kept else f"{message.content}\n{write_calls(message.calls)}".strip())
        answer, _ = self._answer(message)
        return (
            *self.chat.ids.encode_marked(close_thought(self.chat.opened, answer) if self.chat.opened else answer),
            self._call_stop,
        )

    # -- how the pieces are cut -----------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], *, system: str = "") -> str:
        """The template's text, with marks around special tokens that a message, a call or a schema spells out."""
        records = [self._record(message) for message in messages]
        if system and self.chat.has_system_role:
            records.insert(0, {"role": "system", "content": self._mark(system)})
        elif system:
            records[0]["content"] = f"{self._mark(system)}\n\n{records[0]['content']}"
        return self.chat.render(records, tools=self._mark([dict(tool) for tool in self.tools]) or None)

    def _record(self, message: Message) -> dict[str, Any]:
        """A message as chat templates take it."""
        if message.role == "tool":
            about = {"tool_call_id": message.call_id, "name": self._mark(message.name)}
            return {"role": "tool", "content": self._mark(message.content), **about}
        spoken = message.role == "assistant"
        record: dict[str, Any] = {"role": message.role, "content": self._mark(message.content, frame=spoken)}
        if message.calls:
            record["tool_calls"] = [self._call(call) for call in message.calls]
        return record

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": self._mark(call.name), "arguments": self._mark(dict(call.arguments))}
        return {"type": "function", "id": call.id, "function": function}

    @cached_property
    def _start(self) -> str:
        """The prompt of a conversation in which the user has said one word, without the thought that it may open."""
        return self.render([Message(role="user", content=_USER)]).removesuffix(self.chat.opened)

    def _answer(self, message: Message) -> tuple[str, str]:
        """Returns what the template writes for an answer with calls, and behind the token that ends it."""
        results = [Message(role="tool", content=_RESULT, call_id=call.id, name=call.name) for call in message.calls]
        whole = self.render([Message(role="user", content=_USER), message, *results])
        return self.chat.ids.cut(whole[len(self._start) :], self._stop_text)

    def _following(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The text behind an answer's stop token, and that token's."""
        calls = [replace(_PROBE, id=each.call_id, name=each.name) for each in messages if each.role == "tool"]
        said = Message(role="assistant", calls=tuple(calls)) if calls else Message(role="assistant", content=_ANSWER)
        whole = self.render([Message(role="user", content=_USER), said, *messages])
        stop = self._stop_text if calls else self.chat.stop_text
        behind = whole[len(self._start) :].partition(_ANSWER)[2] if not calls else whole[len(self._start) :]
        return self.chat.ids.cut(behind, stop)[1], stop

    def _probe(self) -> tuple[str, str]:
        """The form in which the template writes a call, and the text of the token that ends it."""
        user = Message(role="user", content=_USER)
        said = Message(role="assistant", calls=(_PROBE,))
        result = Message(role="tool", content=_RESULT, call_id=_PROBE.id, name=_NAME)
        try:
            whole = self.render([user, said, result])
        except (TemplateError, TypeError) as error:
            raise ConfigError(f"the chat template cannot render a call of a tool ({error}); {_WAY_OUT}") from error
        prompt = self._start
        names = [tool.get("function", tool)["name"] for tool in self.tools]
        words = {"schemas": names[0] in prompt, "calls": _VALUE in whole, "results": _RESULT in whole}
        dropped = [word for word, there in words.items() if not there]
        if dropped or not whole.startswith(prompt):
            why = (
                f"leaves out the {' and the '.join(dropped)} of tools"
                if dropped
                else "rewrites the prompt behind a call"
            )
            raise ConfigError(f"the chat template {why}; {_WAY_OUT}")
        self.chat.add_frame(whole[len(prompt) :])
        return self._form(whole[len(prompt) :].partition(_RESULT)[0])

    def _form(self, rest: str) -> tuple[str, str]:
        """The first special token at which the text before it reads as the call that was written."""
        for token in self.chat.ids.special_tokens(rest, rest.find(_VALUE)):
            answer = rest[: token.start()]
            for form in FORMS:
                read = read_message(answer, form, self.tools)
                calls = [(call.name, call.arguments, call.fault) for call in read.calls]
                if calls == [(_NAME, {_KEY: _VALUE}, None)] and not read.content.strip():
                    return form, token[0]
        raise ConfigError(f"the chat template writes a call as {rest[:80]!r}, which cannot be read back; {_WAY_OUT}")

    def _takes_several(self) -> bool:
        """Says whether the template writes two calls of one answer so that both are read back."""
        calls = (_PROBE, replace(_PROBE, id="zqcallid1"))
        try:
            answer, _ = self._answer(Message(role="assistant", calls=calls))
        except TemplateError:
            return False
        return len(self.read(answer).calls) == len(calls)

    def _check_history(self) -> None:
        """Two calls with their results, an answer and a question must be written as the pieces say."""
        said = Message(role="assistant", calls=(_PROBE,))
        result = Message(role="tool", content=_RESULT, call_id=_PROBE.id, name=_NAME)
        user, answer = Message(role="user", content=_USER), Message(role="assistant", content=_ANSWER)
        question = Message(role="user", content=_QUESTION)
        whole = self.render([user, said, result, said, result, answer, question])
        call, _ = self._answer(said)
        later, stop = self._following([question])
        step = call + self._stop_text + self._following([result])[0]
        if whole != self._start + step + step + self.chat.lead + _ANSWER + stop + later:
            raise ConfigError(
                "the chat template rewrites history: earlier calls, results or schemas are not written as they were, so a later "
                "prompt would not extend the sampled tokens; keep them with model.keep_history = true, or " + _WAY_OUT
            )

    def _mark(self, value: Any, *, frame: bool = False) -> Any:
        """Put marks around special tokens in texts; with ``frame`` only around those that separate messages."""
        if isinstance(value, str):
            return self.chat.ids.mark(value, only=self._frame if frame else None)
        if isinstance(value, Mapping):
            return {key: self._mark(each) for key, each in value.items()}
        return [self._mark(each) for each in value] if isinstance(value, list | tuple) else value


def tool_listing(tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a model is told of tools by a template that does not know them."""
    schemas = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        f"These are the tools:\n{schemas}\n"
        'To call one, answer with one line of JSON and nothing else: {"name": "the tool", "arguments": {"the argument": "its value"}}'
    )


def _messages(observation: str | Sequence[Message]) -> Sequence[Message]:
    return (Message(role="user", content=observation),) if isinstance(observation, str) else observation


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
