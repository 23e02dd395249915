"""One episode as a policy read and said it, in token ids, and conversations of messages as the pieces that a policy is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import cycle

import numpy as np
from jinja2.exceptions import TemplateError

from gradus.core import (
    Action,
    Asked,
    ContextLengthError,
    EpisodeStart,
    Message,
    Observation,
    PolicyError,
    StopReason,
    Turn,
    TurnTokens,
    Usage,
)
from gradus.core.calls import write_calls
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.renderers import ChatRenderer, answer_message
from gradus.policies.local.text_ids import TokenIds, tokens_to_stop
from gradus.policies.local.tool_renderer import Messages, ToolRenderer

Speaker = ChatRenderer | ToolRenderer


@frozen_record
class PendingTurn:
    """A prompt on its way to an answer."""

    # All that the model reads.
    prompt: TokenIds
    # The part of it that no earlier turn of the same training sequence holds.
    context: TokenIds
    # The answer begins a training sequence.
    restart: bool
    request: Asked
    # Key and number of the turn's randomness.
    key: tuple[int | str, ...]
    number: int

    def room(self, longest: int, context: int | None, holder: str) -> int:
        """Returns how many tokens may be sampled: ``longest``, or what the request or the context leaves.

        ``holder``: whose context it is. Raises ContextLengthError.
        """
        room = room_behind(len(self.prompt), longest, context, holder)
        return min(self.request.max_tokens or longest, room)


@frozen_record
class _AnswerEnd:
    """Where an answer ends: behind the first ``length`` ids of a training sequence."""

    sequence: list[int]
    length: int
    # It lacks a stop token.
    cut: bool


class Conversation:
    """An episode in the middle of a session, as a policy read and said it."""

    def __init__(self, start: EpisodeStart, renderer: ChatRenderer) -> None:
        self._start = start
        self._renderer = renderer
        self._ids: list[int] = []  # of the training sequence that the last answer stands in
        self._ends: list[_AnswerEnd] = []
        self._shown: Counter[TokenIds] = Counter()  # how often each prompt was shown

    def pending(self, observation: Observation) -> PendingTurn:
        """Returns the next turn's prompt. An earlier answer of one's own is never tokenized again.

        Raises PolicyError for messages that the chat template cannot render.
        """
        request = observation.asked or Asked(tools=self._start.tools)
        renderer = self._renderer.for_tools(request.tools, observation.messages)
        restart = observation.restart or not self._ends
        if restart:
            context = self._opening(renderer, observation)
        else:
            context = self._continuation(renderer, observation)
        ids = self._renderer.ids
        beginning = ids.mark(request.prefill)
        if isinstance(renderer, ToolRenderer) and request.choice:
            beginning = renderer.call_opening(request.choice)
            request = replace(request, prefill=beginning)
        if beginning:
            context = (*context, *ids.encode_marked(beginning))
        prompt = context if restart else (*self._ids, *context)
        key = self._start.key
        if request.seed is not None:
            key = (*key, "asked", request.seed)
        number = len(self._ends)
        # Calls of an agent may come in any order: each draws by what it asks, and by how often that was asked.
        if self._start.by_content:
            content = np.array(prompt, dtype=np.int64).tobytes()
            key = (*key, "prompt", blake2b(content, digest_size=8).hexdigest())
            number = self._shown[prompt]
            self._shown[prompt] += 1
        return PendingTurn(
            prompt=prompt,
            context=context,
            restart=restart,
            request=request,
            key=key,
            number=number,
        )

    def _continuation(self, renderer: Speaker, observation: Observation) -> TokenIds:
        context = renderer.following(observation.shown)
        if not self._ends[-1].cut:
            return context
        # A cut answer has no stop token; the frame needs one, and nobody sampled it: it is context.
        return (renderer.stop_id, *context)

    def _opening(self, renderer: Speaker, observation: Observation) -> TokenIds:
        request = observation.asked
        if request is None or request.after is None:
            return opening_ids(renderer, self._start.system_prompt, observation)
        # A foreign agent goes on from an earlier answer of ours: its tokens are taken as they were sampled.
        end = self._ends[request.after]
        stop = (renderer.stop_id,) if end.cut else ()
        later = prompt_ids(renderer, "", observation.messages[request.known :], later=True)
        return (*end.sequence[: end.length], *stop, *later)

    def add_answer(
        self,
        turn: PendingTurn,
        ids: Sequence[int],
        logprobs: Sequence[float],
        legal: Sequence[TokenIds] | None = None,
    ) -> Action:
        """Take down a prompt and its answer, and say it in the words of the domain. A stop string of the request ends the answer."""
        renderer = self._renderer
        request = turn.request
        text = renderer.decode(ids)
        begin = len(renderer.opened)  # what the prompt says does not stop the answer
        count = tokens_to_stop(request.stop, lambda part: renderer.decode(part)[begin:], ids)
        at_stop = count is not None
        if at_stop:
            places = [text.find(stop, begin) for stop in request.stop]
            text = text[: min(place for place in places if place >= 0)]
        # What was sampled behind the stop string is no part of the answer, nor of what is trained.
        ids = tuple(ids[:count])
        cut = ids[-1] not in renderer.stop_ids
        # A new list, because earlier answers refer to the old one.
        if turn.restart:
            self._ids = []
        self._ids += [*turn.context, *ids]
        end = _AnswerEnd(sequence=self._ids, length=len(self._ids), cut=cut)
        self._ends.append(end)
        tokens = TurnTokens(
            context_ids=turn.context,
            action_ids=ids,
            logprobs=tuple(logprobs[:count]),
            restart=turn.restart,
            legal=None if legal is None else tuple(legal[:count]),
        )
        return Action(
            text=text,
            message=answer_message(renderer, request.tools, request.prefill + text),
            tokens=tokens,
            usage=Usage(prompt_tokens=len(turn.prompt), completion_tokens=len(ids)),
            stop=StopReason.TOKEN_LIMIT if cut and not at_stop else None,
            at_stop=at_stop,
            spelled=tuple(renderer.ids.decode([token]) for token in ids) if request.spelled else (),
        )


def room_behind(length: int, longest: int, context: int | None, holder: str) -> int:
    """Returns how many tokens may be sampled behind a prompt of ``length``: ``longest``, or what the context leaves.

    Raises ContextLengthError if it leaves none.
    """
    if context is None:
        return longest
    if length >= context:
        raise ContextLengthError(
            f"the prompt has {length} tokens, but the {holder}'s context holds {context} and the answer needs at least one of "
            "them; shorten the episode or its observations, restart the context, or use a longer one"
        )
    return min(longest, context - length)


def opening_ids(renderer: Speaker, system_prompt: str, seen: Observation | Turn) -> TokenIds:
    """Return the ids of a complete prompt: of an environment's first observation, or of a conversation that a foreign agent sent."""
    if seen.asked is None or not seen.messages:
        return renderer.first(system_prompt, seen.shown)
    return prompt_ids(renderer, system_prompt, seen.messages)


def prompt_ids(renderer: Speaker, system_prompt: str, messages: Messages, *, later: bool = False) -> TokenIds:
    """Return the ids of a conversation up to where the model speaks, in the pieces that a policy is trained on.

    A system message in front takes the place of the system prompt. ``later``: ids of one's own stand before it, and end with an
    answer. What has no such pieces (two users in a row, without tools) is left to the chat template. Raises PolicyError if that cannot
    render it.
    """
    turns = list(messages)
    system = system_prompt
    if turns[0].role == "system":
        system = turns.pop(0).content
    if not turns or turns[-1].role == "assistant":
        raise PolicyError("expected a conversation whose last message is the user's or a tool's")
    try:
        if isinstance(renderer, ChatRenderer) and not later and not _alternate(turns):
            if renderer.plain:
                raise PolicyError("this model has no chat template: give system, user and assistant in turn")
            return renderer.conversation(system, turns)
        ids: list[int] = []
        unanswered: list[Message] = []
        for message in turns:
            if message.role != "assistant":
                unanswered.append(message)
                continue
            ids += _prompt(renderer, system, unanswered, later)
            ids += _answer(renderer, message)
            unanswered = []
            later = True
        ids += _prompt(renderer, system, unanswered, later)
        return tuple(ids)
    except TemplateError as error:
        raise PolicyError(f"the chat template cannot render these messages: {error}") from error


def _alternate(messages: Messages) -> bool:
    """Says whether user and assistant speak in turn."""
    roles = [message.role for message in messages]
    expected = cycle(("user", "assistant"))
    return all(role == next(expected) for role in roles)


def _prompt(renderer: Speaker, system: str, messages: Messages, later: bool) -> TokenIds:
    content: str | Messages = messages
    is_question = len(messages) == 1 and messages[0].role == "user"
    if is_question and isinstance(renderer, ChatRenderer):
        content = messages[0].content
    return renderer.following(content) if later else renderer.first(system, content)


def _answer(renderer: Speaker, message: Message) -> TokenIds:
    """Ids of an earlier answer, as training has them. A reply's text begins with what the model said in front of its answer."""
    text = message.content.removeprefix(renderer.lead)
    if message.calls:
        text = f"{text}\n{write_calls(message.calls)}".strip()
    return renderer.encode_answer(text)
