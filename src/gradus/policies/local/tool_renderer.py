"""Conversations with tools in token ids: schemas in the first prompt, calls in answers, results in what follows.

The pieces are cut out of what the chat template itself writes, as in :mod:`gradus.policies.local.chat_template`. When a renderer is
built, the template is asked for a call and its result: that shows whether it knows tools, in which form it writes a call, which
token ends it, and whether the pieces add up to what the template writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError, Message, ToolCall
from gradus.core.calls import FORMS, read_message, write_calls
from gradus.core.values import Json, JsonDict
from gradus.policies.local.chat_template import ChatTemplate
from gradus.policies.local.text_ids import TokenIds, close_thought

Tools = Sequence[Json]  # JSON schemas
Messages = Sequence[Message]

_WAY_OUT = 'write calls as plain JSON with model.tool_calls = "json", or give the tokenizer a chat template with tools'

# A conversation of words that templates do not write by themselves.
_NAME = "zqtoolqz"
_KEY = "zqkeyqz"
_VALUE = "zqvalueqz"
_RESULT = "zqresultqz"
_USER = "zquserqz"
_ANSWER = "zqsaidqz"
_QUESTION = "zqaskedqz"
_PROBE = ToolCall(name=_NAME, arguments={_KEY: _VALUE}, id="zqcallid0")
_PROBE_USER = Message(role="user", content=_USER)
_PROBE_CALL = Message(role="assistant", calls=(_PROBE,))
_PROBE_RESULT = Message(role="tool", content=_RESULT, call_id=_PROBE.id, name=_NAME)
_PROBE_ANSWER = Message(role="assistant", content=_ANSWER)


class UnreadableToolsError(ConfigError):
    """The chat template has no place for tools, or writes calls in a form that cannot be read back."""


class ToolRenderer:
    """Renders conversations with ``tools`` (JSON schemas), and reads calls in answers.

    ``plain``: calls are lines of JSON and results are messages of the user, whatever the template knows; ``listed`` then puts
    the schemas behind the system prompt. Text that a template leaves out in front of a call is not part of an encoded answer.

    Raises:
        UnreadableToolsError: the template cannot render tools, their calls or their results, or nobody can read its calls back.
        ConfigError: it rewrites them as the conversation goes on. Both messages name the way out.
    """

    def __init__(self, chat: ChatTemplate, tools: Tools, *, plain: bool, listed: bool) -> None:
        self.chat = chat
        self.tools = tuple(tools)
        self.plain = plain
        self.stop_id = chat.stop_id
        self.lead = chat.lead
        self._listing = tool_listing(tools) if plain and listed else ""
        # In which of FORMS calls are written, and whether an answer may hold more than one.
        self.form = "json"
        self.several = True
        self._frame = chat.frame_tokens()
        if plain or not tools:
            return
        # The order matters: each step renders with what the steps before it have found.
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

    def first(self, system_prompt: str, observation: str | Messages) -> TokenIds:
        """Ids of the complete prompt of a training sequence, up to where the model speaks."""
        messages = _messages(observation)
        if not self.plain:
            return self.conversation(system_prompt, messages)
        parts = [part for part in (system_prompt, self._listing) if part]
        return self.chat.first_prompt("\n\n".join(parts), _joined(messages))

    def following(self, observation: str | Messages) -> TokenIds:
        """Ids between the last sampled stop token and where the model speaks again: results of tools, or what the user says."""
        messages = _messages(observation)
        if self.plain:
            return self.chat.next_prompt(_joined(messages))
        text, stop = self._following(messages)
        # Encoded behind its stop token: some tokenizers put a space in front of a text's first word.
        return tuple(self.chat.ids.encode_marked(stop + text)[1:])

    def conversation(self, system_prompt: str, messages: Messages) -> TokenIds:
        """Ids of a conversation as the chat template writes it, up to where the model speaks."""
        text = self.render(messages, system=system_prompt)
        return tuple(self.chat.ids.encode_marked(text))

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action, stop token left out."""
        return self.chat.decode(action_ids)

    def call_opening(self, choice: str) -> str:
        """The beginning of a call, up to the tool's name; for the name of one tool, up to the arguments."""
        name = _NAME if choice == "required" else choice
        call = replace(_PROBE, name=name)
        text = write_calls([call])
        if not self.plain:
            text, _ = self._answer(Message(role="assistant", calls=(call,)))
        if name == _NAME:
            return text.partition(name)[0]
        arguments = max(text.rfind("{", 0, text.find(_KEY)), 0)
        behind_name = text.find(name) + len(name)
        # A form without braces, as xml, has its arguments behind the name.
        return text[:arguments].rstrip() or text[:behind_name]

    def read(self, text: str) -> Message:
        """An answer with its calls, in the template's own form."""
        message = read_message(text, self.form, self.tools)
        calls = message.calls
        # The template would leave out all calls but one when it writes the answer again.
        if len(calls) > 1 and not self.several:
            error = f"this model's chat template takes one call an answer, got {len(calls)}"
            calls = tuple(replace(call, fault="malformed", error=error) for call in calls)
        return replace(message, calls=calls)

    def encode_answer(self, text: str) -> TokenIds:
        """Ids of an answer as the template writes it, stop token included. Calls in ``text`` may have any known form."""
        message = self._read_any(text)
        if message is None:
            return self.chat.encode_answer(text)
        if not self.plain:
            answer, _ = self._answer(message)
            spoken = close_thought(self.chat.opened, answer)
            return (*self.chat.ids.encode_marked(spoken), self._call_stop)
        # The text has calls in another form, and training should teach the plain one.
        if read_message(text, "json").calls != message.calls:
            text = f"{message.content}\n{write_calls(message.calls)}".strip()
        return self.chat.encode_answer(text)

    def _read_any(self, text: str) -> Message | None:
        """An answer in the first form in which all of its calls can be read; None without calls."""
        # JSON first: a teacher writes it whatever the student speaks.
        for form in ("json", self.form, None):
            message = read_message(text, form, self.tools)
            if message.calls and all(call.fault is None for call in message.calls):
                return message
        return None

    # -- how the pieces are cut -----------------------------------------------------------------------------------

    def render(self, messages: Messages, *, system: str = "") -> str:
        """The template's text, with marks around special tokens that a message, a call or a schema spells out."""
        records = [self._record(message) for message in messages]
        if system and self.chat.has_system_role:
            records.insert(0, {"role": "system", "content": self._mark(system)})
        elif system:
            first = records[0]
            first["content"] = f"{self._mark(system)}\n\n{first['content']}"
        schemas = self._mark([dict(tool) for tool in self.tools])
        return self.chat.render(records, tools=schemas or None)

    def _record(self, message: Message) -> JsonDict:
        """A message as chat templates take it."""
        spoken = message.role == "assistant"
        content = self._mark(message.content, frame=spoken)
        record: JsonDict = {"role": message.role, "content": content}
        if message.role == "tool":
            record |= {"tool_call_id": message.call_id, "name": self._mark(message.name)}
        elif message.calls:
            record["tool_calls"] = [self._call(call) for call in message.calls]
        return record

    def _call(self, call: ToolCall) -> JsonDict:
        arguments = self._mark(dict(call.arguments))
        function = {"name": self._mark(call.name), "arguments": arguments}
        return {"type": "function", "id": call.id, "function": function}

    @cached_property
    def _start(self) -> str:
        """The prompt of a conversation in which the user has said one word, without the thought that it may open."""
        return self.render([_PROBE_USER]).removesuffix(self.chat.opened)

    def _answer(self, message: Message) -> tuple[str, str]:
        """Returns what the template writes for an answer with calls, and behind the token that ends it."""
        results = [replace(_PROBE_RESULT, call_id=call.id, name=call.name) for call in message.calls]
        text = self.render([_PROBE_USER, message, *results])
        behind = text[len(self._start) :]
        return self.chat.ids.cut(behind, self._stop_text)

    def _following(self, messages: Messages) -> tuple[str, str]:
        """The text behind an answer's stop token, and that token's."""
        results = [message for message in messages if message.role == "tool"]
        calls = tuple(replace(_PROBE, id=result.call_id, name=result.name) for result in results)
        if calls:
            answer = Message(role="assistant", calls=calls)
            stop = self._stop_text
        else:
            answer = _PROBE_ANSWER
            stop = self.chat.stop_text
        text = self.render([_PROBE_USER, answer, *messages])
        text = text[len(self._start) :]
        if not calls:
            text = text.partition(_ANSWER)[2]
        return self.chat.ids.cut(text, stop)[1], stop

    def _probe(self) -> tuple[str, str]:
        """The form in which the template writes a call, and the text of the token that ends it."""
        try:
            text = self.render([_PROBE_USER, _PROBE_CALL, _PROBE_RESULT])
        except (TemplateError, TypeError) as error:
            raise UnreadableToolsError(
                f"the chat template cannot render a call of a tool ({error}); {_WAY_OUT}"
            ) from error
        prompt = self._start
        tool = self.tools[0]
        name = tool.get("function", tool)["name"]
        written = {"schemas": name in prompt, "calls": _VALUE in text, "results": _RESULT in text}
        dropped = [part for part, is_written in written.items() if not is_written]
        if dropped:
            raise UnreadableToolsError(
                f"the chat template leaves out the {' and the '.join(dropped)} of tools; {_WAY_OUT}"
            )
        if not text.startswith(prompt):
            raise UnreadableToolsError(f"the chat template rewrites the prompt behind a call; {_WAY_OUT}")
        rest = text[len(prompt) :]
        # What stands around calls and results belongs to the frame: content may not spell it.
        self.chat.add_frame(rest)
        return self._form(rest.partition(_RESULT)[0])

    def _form(self, rest: str) -> tuple[str, str]:
        """The first special token at which the text before it reads as the call that was written."""
        for token in self.chat.ids.special_tokens(rest, rest.find(_VALUE)):
            for form in FORMS:
                message = read_message(rest[: token.start()], form, self.tools)
                calls = [(call.name, call.arguments, call.fault) for call in message.calls]
                is_probe = calls == [(_NAME, {_KEY: _VALUE}, None)]
                if is_probe and not message.content.strip():
                    return form, token[0]
        raise UnreadableToolsError(
            f"the chat template writes a call as {rest[:80]!r}, which cannot be read back; {_WAY_OUT}"
        )

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
        question = Message(role="user", content=_QUESTION)
        step = [_PROBE_CALL, _PROBE_RESULT]
        text = self.render([_PROBE_USER, *step, *step, _PROBE_ANSWER, question])
        call, _ = self._answer(_PROBE_CALL)
        result, _ = self._following([_PROBE_RESULT])
        later, stop = self._following([question])
        turn = call + self._stop_text + result
        end = self.lead + _ANSWER + stop + later
        # Two alike: a template that drops or renumbers an earlier call is found by the first of them.
        if text != self._start + turn + turn + end:
            raise ConfigError(
                "the chat template rewrites history: earlier calls, results or schemas are not written as they were, so a later "
                "prompt would not extend the sampled tokens; keep them with model.keep_history = true, or " + _WAY_OUT
            )

    def _mark(self, value: Any, *, frame: bool = False) -> Any:
        """Put marks around special tokens in texts; with ``frame`` only around those that separate messages."""
        if isinstance(value, str):
            return self.chat.ids.mark(value, only=self._frame if frame else None)
        if isinstance(value, Mapping):
            items = cast(Json, value).items()
            return {key: self._mark(item) for key, item in items}
        if isinstance(value, list | tuple):
            values = cast(Sequence[Any], value)
            return [self._mark(item) for item in values]
        return value


def tool_listing(tools: Tools) -> str:
    """Returns the system prompt's part on tools, for a template that does not know them."""
    schemas = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    how = (
        "To call one, answer with one line of JSON and nothing else: "
        '{"name": "the tool", "arguments": {"the argument": "its value"}}'
    )
    return "\n".join(["These are the tools:", *schemas, how])


def _messages(observation: str | Messages) -> Messages:
    return (Message(role="user", content=observation),) if isinstance(observation, str) else observation


def _joined(messages: Messages) -> str:
    return "\n".join(message.content for message in messages)
