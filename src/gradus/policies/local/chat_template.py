"""A chat template, cut into pieces of text that extend each other.

A chat template renders a conversation as one text. A policy that keeps what it sampled needs two pieces of it instead: what
stands before the first answer, and what stands between an answer's stop token and the next answer. Both are cut out of
the template's own text when a template is read, and it is checked there that they add up to what the template writes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from datetime import date as Date
from functools import lru_cache, partial
from itertools import cycle
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from gradus.core import ConfigError
from gradus.core.foreign import within
from gradus.core.values import Json
from gradus.policies.local.text_ids import TextIds, TokenIds, close_thought, is_spoken, open_thought

ToolCalls = Literal["auto", "template", "json"]

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{ message['content'] + '\n\n' }}"
    "{%- elif message['role'] == 'user' -%}{{ 'Observation: ' + message['content'] + '\n' }}"
    "{%- else -%}{{ 'Action: ' + message['content'] + eos_token + '\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Action:' }}{%- endif -%}"
)
"""The template of a tokenizer that has none: plain labels, and its end-of-sequence token behind each answer."""

CACHED = 512  # texts of each kind whose ids are kept, and lists of tools whose renderers are: a server meets many

# Words that templates do not write by themselves. Answers start with a letter and end with one: nothing to trim.
_SYSTEM = "zqsystemqz"
_FIRST = "zqfirstqz"
_ANSWER = "zqanswerqz"
_SECOND = "zqsecondqz"
_THOUGHT = "<think>\nzqthoughtqz\n</think>\n\n"
_SECONDS = 10.0  # that a template may take
_LONGEST = 2**25  # characters that it may write


class ChatTemplate:
    """The pieces of a tokenizer's chat template, as texts and as ids.

    Args:
        tokenizer: a transformers tokenizer. Without a chat template, ``PLAIN_TEMPLATE`` is used.
        stop_ids: further ids that end an answer (a generation config's ``eos_token_id`` list).
        keep_history: take a template that rewrites earlier answers (strips their reasoning), and keep them as sampled
            all the same. Without it such a template is an error.
        template_options: passed to the template (``{"enable_thinking": False}``).
        date: the day, as year-month-day, for a template that asks for today's date.
        tool_calls: how calls of tools are written: ``template`` as the chat template has it; ``json`` as lines of JSON, with the
            schemas behind the system prompt; ``auto`` is ``template`` if it can write calls that are read back, else ``json``
            (without schemas for a nano model and where there is no template).

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
        template_options: Json | None = None,
        date: str = "2026-01-01",
        tool_calls: ToolCalls | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.keep_history = keep_history
        self.tool_calls = tool_calls or "auto"
        self.plain = tokenizer.chat_template is None
        self._options = dict(template_options or {})
        template = PLAIN_TEMPLATE
        if not self.plain:
            template = tokenizer.get_chat_template(tools=self._options.get("tools"))
        self._day = Date.fromisoformat(date)
        self._template = _dated(template, self._day)
        self.ids = TextIds(tokenizer)
        if self.plain and tokenizer.eos_token_id is None:
            raise ConfigError(
                "the tokenizer has neither a chat template nor an end-of-sequence token, so an answer could not end; "
                "set tokenizer.eos_token, or give the tokenizer a chat template"
            )
        # The order matters: each step renders with what the steps before it have found.
        self.has_system_role = self._accepts_system()
        prompt, self._conversation = self._probe()
        self.opened = open_thought(prompt)
        # Some templates write a space in front of an answer that is not part of the prompt: the model says it.
        self.lead = _lead(prompt, self._conversation)
        tail = self._conversation.partition(_ANSWER)[2]
        self.stop_id, self.stop_text = self._stop_token(tail)
        # Ids that end an answer: the template's own, the tokenizer's end of sequence, and those of the argument.
        self.stop_ids: frozenset[int] = frozenset({self.stop_id, *stop_ids})
        if tokenizer.eos_token_id is not None:
            self.stop_ids |= {tokenizer.eos_token_id}
        behind_stop = tail[len(self.stop_text) :]
        self._before, self._after = behind_stop.split(_SECOND)
        self.add_frame(self._conversation)
        self._strips = self._strips_content()
        self.first_prompt = lru_cache(maxsize=CACHED)(self._first_prompt)
        self.next_prompt = lru_cache(maxsize=CACHED)(self._next_prompt)
        self._answer_cached = lru_cache(maxsize=CACHED)(self._encode_answer)

    def encode_answer(self, text: str) -> TokenIds:
        """Ids of an answer as the template would have it spoken, stop token included: what a teacher's text is trained as."""
        return (*self._answer_cached(close_thought(self.opened, text)), self.stop_id)

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action, stop token left out, thoughts in ``<think>``. Other special tokens stay visible."""
        ids = list(action_ids)
        while ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.opened + self.ids.decode(ids)

    def render(self, messages: Sequence[Json], *, tools: Any = None) -> str:
        """The template's text of messages and tools, up to where the model speaks.

        A template is a stranger's program: one that writes or takes too much raises TemplateError.
        """
        options = {"tokenize": False, "add_generation_prompt": True, "chat_template": self._template, **self._options}
        if tools is not None:
            options["tools"] = tools
        if tools is not None and not self.plain:  # some have another template for tools
            options["chat_template"] = _dated(self.tokenizer.get_chat_template(tools=tools), self._day)
        apply = partial(self.tokenizer.apply_chat_template, list(messages), **options)
        try:
            text = within(_SECONDS, "the chat template", apply)
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateError(str(error) or "it needs more memory than there is") from error
        if len(text) > _LONGEST:
            raise TemplateError(f"it writes {len(text)} characters, and at most {_LONGEST} are taken")
        return text

    def dated_tokenizer(self) -> Any:
        """The tokenizer with a chat template that says the renderer's day, for rendering without Gradus."""
        dated = copy.deepcopy(self.tokenizer)
        # Without a template there is nothing to date.
        if isinstance(dated.chat_template, str):
            dated.chat_template = self._template
        return dated

    def add_stop(self, stop_id: int) -> None:
        """Let a further token end an answer: some templates end a call of a tool with one of its own."""
        self.stop_ids |= {stop_id}
        self._answer_cached.cache_clear()  # it depends on them

    def add_frame(self, text: str) -> None:
        """Let the tokens that the template writes around messages in ``text`` be letters in what messages say."""
        for match in self.ids.special_tokens(text):
            if not is_spoken(match[0]):
                self.ids.frame |= {match[0]}

    def frame_tokens(self) -> set[str]:
        """Tokens that answers never hold: special tokens that the template writes around messages, and those that end an answer."""
        around = {match[0] for match in self.ids.special_tokens(self._conversation)}
        added = self.ids.added
        return around | {added[stop] for stop in self.stop_ids if stop in added}

    def messages(self, system: str, *texts: str) -> list[dict[str, str]]:
        """A conversation: system prompt, then observation, answer, observation, ... in turn."""
        roles = cycle(("user", "assistant"))
        turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        if not system:
            return turns
        if self.has_system_role:
            return [{"role": "system", "content": system}, *turns]
        # Without a system role the prompt stands in front of the first observation.
        turns[0]["content"] = f"{system}\n\n{turns[0]['content']}"
        return turns

    # -- how the pieces are cut -----------------------------------------------------------------------------------

    def _accepts_system(self) -> bool:
        self.has_system_role = True
        try:
            text = self.render(self.messages(_SYSTEM, _FIRST, _ANSWER, _SECOND))
        except TemplateError:  # Gemma's way of saying that it has no system role
            return False
        return _SYSTEM in text.split(_ANSWER)[0]  # some templates write it in front of the newest message

    def _probe(self) -> tuple[str, str]:
        """Returns the prompt of a first answer, and a conversation in which a second one is asked for."""
        words = (_SYSTEM, _FIRST, _ANSWER, _SECOND)
        try:
            prompt = self.render(self.messages(_SYSTEM, _FIRST))
            conversation = self.render(self.messages(*words))
            with_thought = self.messages(_SYSTEM, _FIRST, _THOUGHT + _ANSWER, _SECOND)
            reasoned = self.render(with_thought)
        except TemplateError as error:
            raise ConfigError(
                f"the chat template cannot render a conversation of user and assistant: {error}; give the tokenizer another"
            ) from error
        counts = {prompt.count(word) for word in words[:2]}
        counts |= {conversation.count(word) for word in words}
        # Pieces are cut at these words, so each must stand where it can be found.
        if counts != {1}:
            raise ConfigError(
                "the chat template does not write every message exactly once, so turns cannot be told apart; "
                "give the tokenizer another chat template"
            )
        lead = _lead(prompt, conversation)
        if "<|channel|>" in lead:
            raise ConfigError(
                "the chat template writes answers in channels, as gpt-oss does, and these are not read; choose another model, or serve "
                "this one and use it as remote:NAME"
            )
        spoken = prompt + lead + _THOUGHT + _ANSWER
        as_spoken = conversation.startswith(prompt) and reasoned.startswith(spoken)
        if not as_spoken and not self.keep_history:
            raise ConfigError(
                "the chat template rewrites history: an earlier answer is not written as it was spoken (many templates "
                "strip reasoning), so a later prompt would not extend the sampled tokens; keep answers as sampled with "
                "keep_history=True (model.keep_history = true in a recipe), or give the tokenizer a template that leaves them "
                "alone"
            )
        return prompt, conversation

    def _stop_token(self, tail: str) -> tuple[int, str]:
        """The token that ends an answer, and its text at the head of ``tail``."""
        ids = self.ids.encode(tail)
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        text = self.ids.decode(ids[:1])
        ends_answer = bool(ids) and ids[0] in special
        if not ends_answer or not text or not tail.startswith(text):
            raise ConfigError(
                f"the chat template ends an answer with {tail[:20]!r}, which is not a special token of the tokenizer, so "
                "the model could not say that it is done; end assistant turns with eos_token in the template"
            )
        return ids[0], text

    def _strips_content(self) -> bool:
        """Says whether the template strips an observation. Checks that it changes nothing else of it, and that the same tokens follow the
        second answer as the first one."""
        probe = "  zq \n two lines\n "
        text = self.render(self.messages(_SYSTEM, _FIRST, "zqearlier", "zqbetween", _ANSWER, probe))
        tail = text.partition(_ANSWER)[2]
        written = tail.removeprefix(self.stop_text + self._before)
        written = written.removesuffix(self._after)
        if written not in (probe, probe.strip()):
            raise ConfigError(
                "the chat template writes a third turn differently from the second, or changes what a user says, so it cannot be "
                "extended turn by turn; give the tokenizer another chat template"
            )
        return written != probe

    # -- text to ids ----------------------------------------------------------------------------------------------

    def _first_prompt(self, system_prompt: str, text: str) -> TokenIds:
        system = self.ids.mark(system_prompt)
        messages = self.messages(system, self.ids.mark(text))
        return tuple(self.ids.encode_marked(self.render(messages)))

    def _next_prompt(self, text: str) -> TokenIds:
        if self._strips:
            text = text.strip()
        # Encoded behind its stop token: some tokenizers put a space in front of a text's first word.
        marked = self.stop_text + self._before + self.ids.mark(text) + self._after
        return tuple(self.ids.encode_marked(marked)[1:])

    def _encode_answer(self, text: str) -> list[int]:
        """Encode what an assistant says. Tokens of the frame that it spells out stay letters; tools' and thoughts' are tokens."""
        marked = self.ids.mark(text, only=self.frame_tokens())
        return self.ids.encode_marked(self.lead + marked)


def _lead(prompt: str, conversation: str) -> str:
    """What a template writes between the prompt and an answer; empty if it does not keep the prompt."""
    if not conversation.startswith(prompt):
        return ""
    return conversation[len(prompt) :].partition(_ANSWER)[0]


def _dated(template: str, day: Date) -> str:
    """The template with a fixed day in place of the clock's: a run that is resumed tomorrow reads the same prompts."""
    return re.sub(
        r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""", lambda match: match[1] + day.strftime(match[2]) + match[1], template
    )
