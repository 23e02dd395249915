"""From conversation to token ids, so that a later prompt extends the earlier tokens exactly.

A chat template renders a whole conversation. A policy that keeps what it sampled needs two pieces of it instead: what
stands before the first answer, and what stands between an answer's stop token and the next answer. Both are cut out of
the template's own text when a renderer is built, and it is checked there that they add up to what the template writes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date as Date
from functools import lru_cache
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError, Message
from gradus.core.errors import OutOfTime
from gradus.core.foreign import within
from gradus.policies.local.answer_text import (
    RunningText,
    close_thought,
    is_spoken,
    open_thought,
)
from gradus.policies.local.text_ids import TextIds
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

# Words that no template writes of its own accord. Answers start with a letter and end with one: nothing to trim.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "zqsystemqz", "zqfirstqz", "zqanswerqz", "zqsecondqz"
_MOST_TOOLS = 256  # lists of tools whose renderers are kept
_TOOLS_TEXT = 2**22  # characters of their schemas
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
        try:
            template = PLAIN_TEMPLATE if self.plain else tokenizer.get_chat_template(tools=self._options.get("tools"))
        except ValueError:
            raise ConfigError(
                f"the tokenizer has chat templates called {', '.join(tokenizer.chat_template)}, and none called default; set "
                "tokenizer.chat_template to one of them, and save it"
            ) from None
        self._template = _dated(template, Date.fromisoformat(date))
        self._day = Date.fromisoformat(date)
        self.ids = TextIds(tokenizer)
        if self.plain and tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer has neither a chat template nor an end-of-sequence token, so an answer could not end; "
                "set tokenizer.eos_token, or give the tokenizer a chat template"
            )
        self.has_system_role = self._accepts_system()
        tail = self._tail(keep_history)
        self.stop_text = self._stop_token(tail)[1]
        self.stop_id = self._last_stop(tail)
        self._stops = frozenset({self.stop_id, *stop_ids, *_as_ids(tokenizer.eos_token_id)})
        before, after = tail[len(self.stop_text) :].split(_SECOND)
        self._before, self._after = before, after
        self.add_frame(self._frame)
        self._clean = self._content_rule()
        self._check_third_turn()
        self._by_tools: dict[str, ToolRenderer] = {}
        self._first_cached: Callable[[str, str], tuple[int, ...]] = lru_cache(maxsize=4096)(self._first)
        self._following_cached: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=4096)(self._following)
        self._answer_cached = lru_cache(maxsize=4096)(self._encode_answer)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer: the template's own, the tokenizer's end of sequence, and those given."""
        return self._stops

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer | ToolRenderer:
        """The renderer of an episode with these tools; itself if there are none. Raises ConfigError for what the template cannot do."""
        return self._with_tools(tools) if tools else self

    def _with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ToolRenderer:
        key = json.dumps([dict(tool) for tool in tools], sort_keys=True)
        renderer = self._by_tools.get(key)
        if renderer is None:
            nano = self.plain or self.tokenizer.chat_template == NANO_TEMPLATE
            plain = self._tool_calls == "json" or (self._tool_calls == "auto" and nano)
            renderer = ToolRenderer(self, tools, plain=plain, listed=self._tool_calls == "json")
            self._by_tools[key] = renderer
            _drop_oldest(self._by_tools)
        return renderer

    def first(self, system_prompt: str, observation: Said, *, cached: bool = True) -> tuple[int, ...]:
        """Ids of the whole prompt of a training sequence, up to where the model speaks. A server keeps none: ``cached`` false."""
        if not isinstance(observation, str):
            return self._with_tools(()).first(system_prompt, observation)
        return self._first_cached(system_prompt, observation) if cached else self._first(system_prompt, observation)

    def following(self, observation: Said, *, cached: bool = True) -> tuple[int, ...]:
        """Ids between the last sampled stop token and where the model speaks again."""
        if not isinstance(observation, str):
            return self._with_tools(()).following(observation)
        return self._following_cached(observation) if cached else self._following(observation)

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of any conversation that the template can render, up to where the model speaks."""

        def content(message: Mapping[str, str]) -> str:
            if message["role"] == "assistant":  # the template may cut its thoughts off
                return self.ids.mark(message["content"], only=self.frame_tokens())
            return self._as_content(message["content"])[0]

        marked = [{**message, "content": content(message)} for message in messages]
        return self.ids.encode_marked(self._render(marked))

    def encode_answer(self, text: str, ids: Sequence[str] = (), *, cached: bool = True) -> tuple[int, ...]:
        """Ids of an answer as the template would have it spoken, stop token included: what a teacher's text is trained as.
        ``ids`` are those of its calls, of which there are none without tools. A server keeps none: ``cached`` false."""
        if self.opened:
            text = close_thought(self.opened, text)
        encode = self._answer_cached if cached else self._encode_answer
        return (*encode(self.lead + text, len(self.lead)), self.stop_id)

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action, stop token left out, thoughts in ``<think>``. Other special tokens stay visible."""
        return self.opened + self.ids.decode(self._spoken(action_ids))

    def running_text(self) -> RunningText:
        """Returns what tells the text of an answer while it is sampled, without :attr:`opened`, which the prompt says."""
        return RunningText(self.ids.decode)

    def _spoken(self, action_ids: Sequence[int]) -> list[int]:
        ids = list(action_ids)
        while ids and ids[-1] in self._stops:
            ids.pop()
        return ids

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None) -> str:
        """The template's text of messages and tools, up to where the model speaks."""
        named = {} if tools is None else {"tools": tools}
        template = self._template
        if tools is not None and isinstance(self.tokenizer.chat_template, dict):  # some have another one for tools
            template = _dated(self.tokenizer.get_chat_template(tools=tools), self._day)
        return self._apply(list(messages), add_generation_prompt=True, chat_template=template, **named)

    def _apply(self, messages: list[Any], **named: Any) -> str:
        """The template's text. A template is a stranger's program: one that writes or takes too much raises TemplateError."""
        try:
            options = {"tokenize": False, **self._options, **named}
            text = within(
                _SECONDS, "the chat template", lambda: self.tokenizer.apply_chat_template(messages, **options)
            )
        except (OutOfTime, MemoryError) as error:
            raise TemplateError(str(error) or "it needs more memory than there is") from error
        if len(text) > _LONGEST:
            raise TemplateError(f"it writes {len(text)} characters, and at most {_LONGEST} are taken")
        return text

    def dated_tokenizer(self) -> Any:
        """The tokenizer with a chat template that says the renderer's day, for rendering without Gradus."""
        dated, template = copy.deepcopy(self.tokenizer), self.tokenizer.chat_template
        if isinstance(template, dict):
            dated.chat_template = {name: _dated(each, self._day) for name, each in template.items()}
        elif template is not None:
            dated.chat_template = _dated(template, self._day)
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
        """Tokens that no answer holds: special tokens that the template writes around messages, and those that end an answer."""
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

    def _render(self, messages: list[dict[str, str]], *, speak: bool = True) -> str:
        return self._apply(messages, add_generation_prompt=speak, chat_template=self._template)

    def _accepts_system(self) -> bool:
        self.has_system_role = True
        try:
            whole = self._render(self.messages(_SYSTEM, _FIRST, _ANSWER, _SECOND))
            return _SYSTEM in whole.split(_ANSWER)[0]  # some templates write it in front of the newest message
        except TemplateError:  # Gemma's way of saying that it has no system role
            return False

    def _tail(self, keep_history: bool) -> str:
        """The template's text behind the first answer of a conversation with two observations."""
        try:
            prompt = self._render(self.messages(_SYSTEM, _FIRST))
            whole = self._render(self.messages(_SYSTEM, _FIRST, _ANSWER, _SECOND))
            reasoned = self._render(self.messages(_SYSTEM, _FIRST, _THOUGHT + _ANSWER, _SECOND))
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

    def _last_stop(self, tail: str) -> int:
        """The token that ends the newest answer; some templates replace it by another once the conversation goes on."""
        last = self._render(self.messages(_SYSTEM, _FIRST, _ANSWER), speak=False).rpartition(_ANSWER)[2]
        self._frame += last
        return self._stop_token(last if last.strip() else tail)[0]

    def _content_rule(self) -> Callable[[str], str] | None:
        """Says how the template writes an observation: as it is, stripped, or in a way that only the template knows (None)."""
        probe = "  zq \n two lines\n "
        whole = self._render(self.messages(_SYSTEM, _FIRST, _ANSWER, probe))
        written = whole.split(_ANSWER, 1)[1]
        for rule in (_unchanged, str.strip):
            if written == self.stop_text + self._before + rule(probe) + self._after:
                return rule
        return None

    def _check_third_turn(self) -> None:
        """Checks that the same tokens follow the second answer as the first one."""
        whole = self._render(self.messages(_SYSTEM, _FIRST, "zqearlier", "zqbetween", _ANSWER, _SECOND))
        if whole.split(_ANSWER, 1)[1] != self.stop_text + self._before + _SECOND + self._after:
            raise ConfigError(
                "the chat template writes the third turn differently from the second, so it cannot be extended turn by "
                "turn; give the tokenizer another chat template"
            )

    # -- text to ids ----------------------------------------------------------------------------------------------

    def _first(self, system_prompt: str, observation: str) -> tuple[int, ...]:
        system_prompt, observation = self._as_content(system_prompt, observation)
        return tuple(self.ids.encode_marked(self._render(self.messages(system_prompt, observation))))

    def _following(self, observation: str) -> tuple[int, ...]:
        if self._clean is not None:
            observation = self._clean(observation)
        (observation,) = self._as_content(observation)
        if self._clean is None:
            whole = self._render(self.messages(_SYSTEM, _FIRST, _ANSWER, observation))
            text = whole.split(_ANSWER, 1)[1]
        else:
            text = self.stop_text + self._before + observation + self._after
        # Encoded behind its stop token: some tokenizers put a space in front of a text's first word.
        return tuple(self.ids.encode_marked(text)[1:])

    def _encode_answer(self, text: str, lead: int = 0) -> list[int]:
        """Encode what an assistant says. Tokens of the frame that it spells out stay letters; tools' and thoughts' are tokens."""
        matches = list(self.ids.special_tokens(text, lead))
        tokens = self.frame_tokens() if matches else set[str]()
        frame = [match for match in matches if match[0] in tokens]
        if not frame:
            return self.ids.encode(text)
        ids: list[int] = []
        start = 0
        for match in frame:
            ids += self.ids.encode(text[start : match.start()]) if match.start() > start else []
            ids += self.ids.letters(match[0])
            start = match.end()
        return ids + (self.ids.encode(text[start:]) if start < len(text) else [])

    def _as_content(self, *contents: str) -> Sequence[str]:
        """The contents, marked as letters if one of them spells out a special token: content must not end a frame."""
        if self.ids.special is None or not any(map(self.ids.special.search, contents)):
            return contents
        return [self.ids.mark_all(part) for part in contents]


def _drop_oldest(by_tools: dict[str, ToolRenderer]) -> None:
    """Keep the newest tools, within bounds: a server's clients may send others with every request."""
    kept = list(by_tools)
    size = sum(map(len, kept))
    while len(kept) > 1 and (len(kept) > _MOST_TOOLS or size > _TOOLS_TEXT):
        oldest = kept.pop(0)
        size -= len(oldest)
        by_tools.pop(oldest, None)


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


def _unchanged(text: str) -> str:
    return text


def _as_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
