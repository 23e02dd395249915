"""From conversation to token ids, so that a later prompt extends the earlier tokens exactly.

A chat template renders a whole conversation. A policy that keeps what it sampled needs two pieces of it instead: what
stands before the first answer, and what stands between an answer's stop token and the next answer. Both are cut out of
the template's own text when a renderer is built, and it is checked there that they add up to what the template writes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date as Date
from functools import lru_cache, partial
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError, Message
from gradus.core.errors import OutOfTime
from gradus.core.foreign import within
from gradus.policies.local.text_ids import TextIds, close_thought, is_spoken, open_thought
from gradus.policies.local.tool_renderer import ToolRenderer
from gradus.policies.nano.model import NANO_TEMPLATE

ToolCalls = Literal["auto", "template", "json"]
Said = str | Sequence[Message]

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{ message['content'] + '\n\n' }}"
    "{%- elif message['role'] == 'user' -%}{{ 'Observation: ' + message['content'] + '\n' }}"
    "{%- else -%}{{ 'Action: ' + message['content'] + eos_token + '\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Action:' }}{%- endif -%}"
)
"""The template of a tokenizer that has none: plain labels, and its end-of-sequence token behind each answer."""

# Words that templates do not write by themselves. Answers start with a letter and end with one: nothing to trim.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "zqsystemqz", "zqfirstqz", "zqanswerqz", "zqsecondqz"
_KEPT = 512  # texts of each kind whose ids are kept, and lists of tools whose renderers are: a server meets many
_SECONDS, _LONGEST = 10.0, 2**25  # that a template may take, and the characters that it may write
_THOUGHT = "<think>\nzqthoughtqz\n</think>\n\n"


class ChatRenderer:
    """Renders by a tokenizer's chat template, in pieces that extend each other.

    Args:
        tokenizer: a transformers tokenizer. Without a chat template, ``PLAIN_TEMPLATE`` is used.
        stop_ids: further ids that end an answer (a generation config's ``eos_token_id`` list).
        keep_history: take a template that rewrites earlier answers (strips their reasoning), and keep them as sampled
            all the same. Without it such a template is an error.
        template_options: passed to the template (``{"enable_thinking": False}``).
        date: what a template is told if it asks for today's date, as year-month-day.
        tool_calls: how calls of tools are written: ``template`` as the chat template has it; ``json`` as lines of JSON, with the
            schemas behind the system prompt; ``auto`` is ``template``, and JSON without schemas if there is no chat template
            or it is a nano model's.

    A template without a system role, or one that moves the system prompt as the conversation grows, gets the system prompt in
    front of the first observation, an empty line between. Thoughts are ``<think>`` blocks in texts, however the template writes
    them: behind a prompt that leaves a thought open, an answer without one closes it first.

    Raises:
        ConfigError: the template rewrites history, ends answers with no token of its own, or cannot render a
            conversation of system, user and assistant; the message names the way out.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_ids: Iterable[int] = (),
        keep_history: bool = False,
        template_options: Mapping[str, Any] | None = None,
        date: str = "2026-01-01",
        tool_calls: ToolCalls | None = None,
    ) -> None:
        self.tokenizer, self.keep_history, self._tool_calls = tokenizer, keep_history, tool_calls or "auto"
        self.plain = tokenizer.chat_template is None
        self._options = dict(template_options or {})
        template = PLAIN_TEMPLATE if self.plain else tokenizer.get_chat_template(tools=self._options.get("tools"))
        self._day = Date.fromisoformat(date)
        self._template = _dated(template, self._day)
        self.ids = TextIds(tokenizer)
        if self.plain and tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer has neither a chat template nor an end-of-sequence token, so an answer could not end; "
                "set tokenizer.eos_token, or give the tokenizer a chat template"
            )
        self.has_system_role = self._accepts_system()
        tail = self._tail(keep_history)
        self.stop_id, self.stop_text = self._stop_token(tail)
        self._stops = frozenset({self.stop_id, *stop_ids, tokenizer.eos_token_id}) - {None}
        before, after = tail[len(self.stop_text) :].split(_SECOND)
        self._before, self._after = before, after
        self.add_frame(self._frame)
        self._strips = self._strips_content()
        self._by_tools = lru_cache(maxsize=_KEPT)(self._make_with_tools)
        self._first_cached = lru_cache(maxsize=_KEPT)(self._first)
        self._following_cached = lru_cache(maxsize=_KEPT)(self._following)
        self._answer_cached = lru_cache(maxsize=_KEPT)(self._encode_answer)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer: the template's own, the tokenizer's end of sequence, and those given."""
        return self._stops

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer | ToolRenderer:
        """The renderer of an episode with these tools; itself if there are none. Raises ConfigError for what the template cannot do."""
        return self._with_tools(tools) if tools else self

    def _with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ToolRenderer:
        return self._by_tools(json.dumps([dict(tool) for tool in tools]))

    def _make_with_tools(self, tools: str) -> ToolRenderer:
        nano = self.plain or self.tokenizer.chat_template == NANO_TEMPLATE
        plain = self._tool_calls == "json" or (self._tool_calls == "auto" and nano)
        return ToolRenderer(self, json.loads(tools), plain=plain, listed=self._tool_calls == "json")

    def first(self, system_prompt: str, observation: Said) -> tuple[int, ...]:
        """Ids of the whole prompt of a training sequence, up to where the model speaks."""
        if not isinstance(observation, str):
            return self._with_tools(()).first(system_prompt, observation)
        return self._first_cached(system_prompt, observation)

    def following(self, observation: Said) -> tuple[int, ...]:
        """Ids between the last sampled stop token and where the model speaks again."""
        if not isinstance(observation, str):
            return self._with_tools(()).following(observation)
        return self._following_cached(observation)

    def conversation(self, system_prompt: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of any conversation that the template can render, up to where the model speaks."""
        return tuple(self.ids.encode_marked(self._with_tools(()).render(messages, system=system_prompt)))

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Ids of an answer as the template would have it spoken, stop token included: what a teacher's text is trained as."""
        if self.opened:
            text = close_thought(self.opened, text)
        return (*self._answer_cached(text), self.stop_id)

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action, stop token left out, thoughts in ``<think>``. Other special tokens stay visible."""
        return self.opened + self.ids.decode(self._spoken(action_ids))

    def _spoken(self, action_ids: Sequence[int]) -> list[int]:
        ids = list(action_ids)
        while ids and ids[-1] in self._stops:
            ids.pop()
        return ids

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None) -> str:
        """The template's text of messages and tools, up to where the model speaks.

        A template is a stranger's program: one that writes or takes too much raises TemplateError.
        """
        options = self._options if tools is None else {**self._options, "tools": tools}
        template = self._template
        if tools is not None and not self.plain:  # some have another one for tools
            template = _dated(self.tokenizer.get_chat_template(tools=tools), self._day)
        options = {"tokenize": False, "add_generation_prompt": True, "chat_template": template, **options}
        try:
            text = within(
                _SECONDS, "the chat template", partial(self.tokenizer.apply_chat_template, [*messages], **options)
            )
        except (OutOfTime, MemoryError) as error:
            raise TemplateError(str(error) or "it needs more memory than there is") from error
        if len(text) > _LONGEST:
            raise TemplateError(f"it writes {len(text)} characters, and at most {_LONGEST} are taken")
        return text

    def dated_tokenizer(self) -> Any:
        """The tokenizer with a chat template that says the renderer's day, for rendering without Gradus."""
        dated = copy.deepcopy(self.tokenizer)
        if isinstance(dated.chat_template, str):
            dated.chat_template = self._template
        return dated

    def add_stop(self, stop_id: int) -> None:
        """Let a further token end an answer: some templates end a call of a tool with one of its own."""
        self._stops |= {stop_id}
        self._answer_cached.cache_clear()

    def add_frame(self, text: str) -> None:
        """Let the tokens that the template writes around messages in ``text`` be letters in what messages say."""
        tokens = {match[0] for match in self.ids.special_tokens(text, 0)}
        self.ids.frame |= {token for token in tokens if not is_spoken(token)}

    def frame_tokens(self) -> set[str]:
        """Tokens that answers never hold: special tokens that the template writes around messages, and those that end an answer."""
        around = {match[0] for match in self.ids.special_tokens(self._frame, 0)}
        return around | {self.ids.added[stop] for stop in self._stops if stop in self.ids.added}

    # -- how the pieces are cut -----------------------------------------------------------------------------------

    def messages(self, system: str, *said: str) -> list[dict[str, str]]:
        """A conversation: system prompt, then observation, answer, observation, ... in turn."""
        turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        if not system:
            return turns
        if self.has_system_role:
            return [{"role": "system", "content": system}, *turns]
        turns[0]["content"] = f"{system}\n\n{turns[0]['content']}"
        return turns

    def _accepts_system(self) -> bool:
        self.has_system_role = True
        try:
            whole = self.render(self.messages(_SYSTEM, _FIRST, _ANSWER, _SECOND))
            return _SYSTEM in whole.split(_ANSWER)[0]  # some templates write it in front of the newest message
        except TemplateError:  # Gemma's way of saying that it has no system role
            return False

    def _tail(self, keep_history: bool) -> str:
        """The template's text behind the first answer of a conversation with two observations."""
        try:
            prompt = self.render(self.messages(_SYSTEM, _FIRST))
            whole = self.render(self.messages(_SYSTEM, _FIRST, _ANSWER, _SECOND))
            reasoned = self.render(self.messages(_SYSTEM, _FIRST, _THOUGHT + _ANSWER, _SECOND))
        except TemplateError as error:
            raise ConfigError(
                f"the chat template cannot render a conversation of user and assistant: {error}; give the tokenizer another"
            ) from error
        for text, words in ((prompt, (_SYSTEM, _FIRST)), (whole, (_SYSTEM, _FIRST, _ANSWER, _SECOND))):
            if any(text.count(word) != 1 for word in words):
                raise ConfigError(
                    "the chat template does not write every message exactly once, so turns cannot be told apart; "
                    "give the tokenizer another chat template"
                )
        spoken, thought = _behind(whole, prompt), _behind(reasoned, prompt)
        lead = spoken.split(_ANSWER)[0] if _ANSWER in spoken else ""
        if "<|channel|>" in lead:
            raise ConfigError(
                "the chat template writes answers in channels, as gpt-oss does, and these are not read; choose another model, or serve "
                "this one and use it as remote:NAME"
            )
        self.opened = open_thought(prompt)
        exact = bool(spoken) and thought.startswith(lead + _THOUGHT + _ANSWER)
        if not exact and not keep_history:
            raise ConfigError(
                "the chat template rewrites history: an earlier answer is not written as it was spoken (many templates "
                "strip reasoning), so a later prompt would not extend the sampled tokens; keep answers as sampled with "
                "keep_history=True (model.keep_history = true in a recipe), or give the tokenizer a template that leaves them "
                "alone"
            )
        # Some templates write a space in front of an answer that is not part of the prompt: the model says it.
        self.lead = lead
        self._frame = whole
        return whole.split(_ANSWER, 1)[1]

    def _stop_token(self, tail: str) -> tuple[int, str]:
        """The token that ends an answer, and its text at the head of ``tail``."""
        ids = self.ids.encode(tail)
        known = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        text = self.tokenizer.decode(ids[:1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not ids or ids[0] not in known or not text or not tail.startswith(text):
            raise ConfigError(
                f"the chat template ends an answer with {tail[:20]!r}, which is not a special token of the tokenizer, so "
                "the model could not say that it is done; end assistant turns with eos_token in the template"
            )
        return ids[0], text

    def _strips_content(self) -> bool:
        """Says whether the template strips an observation. Checks that it changes nothing else of it, and that the same tokens follow the
        second answer as the first one."""
        probe = "  zq \n two lines\n "
        whole = self.render(self.messages(_SYSTEM, _FIRST, "zqearlier", "zqbetween", _ANSWER, probe))
        written = whole.split(_ANSWER, 1)[1].removeprefix(self.stop_text + self._before).removesuffix(self._after)
        if written not in (probe, probe.strip()):
            raise ConfigError(
                "the chat template writes a third turn differently from the second, or changes what a user says, so it cannot be "
                "extended turn by turn; give the tokenizer another chat template"
            )
        return written != probe

    # -- text to ids ----------------------------------------------------------------------------------------------

    def _first(self, system_prompt: str, observation: str) -> tuple[int, ...]:
        messages = self.messages(self.ids.mark(system_prompt), self.ids.mark(observation))
        return tuple(self.ids.encode_marked(self.render(messages)))

    def _following(self, observation: str) -> tuple[int, ...]:
        said = self.ids.mark(observation.strip() if self._strips else observation)
        text = self.stop_text + self._before + said + self._after
        # Encoded behind its stop token: some tokenizers put a space in front of a text's first word.
        return tuple(self.ids.encode_marked(text)[1:])

    def _encode_answer(self, text: str) -> list[int]:
        """Encode what an assistant says. Tokens of the frame that it spells out stay letters; tools' and thoughts' are tokens."""
        return self.ids.encode_marked(self.lead + self.ids.mark(text, only=self.frame_tokens()))


def answer_message(renderer: ChatRenderer, tools: Sequence[Mapping[str, Any]], text: str) -> Message | None:
    """An answer as a message with its calls; None in an episode without tools."""
    speaker = renderer.for_tools(tools)
    return speaker.read(text) if isinstance(speaker, ToolRenderer) else None


def _dated(template: str, day: Date) -> str:
    """The template with a fixed day in place of the clock's: a run that is resumed tomorrow reads the same prompts."""
    return re.sub(
        r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""", lambda match: match[1] + day.strftime(match[2]) + match[1], template
    )


def _behind(text: str, prompt: str) -> str:
    return text[len(prompt) :] if text.startswith(prompt) else ""
