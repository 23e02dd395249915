"""Conversations up to where the model speaks; tokens to text, piece by piece, and to an answer; and a chat in the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from gradus.core import Asked, ConfigError, EpisodeStart, Message, Observation, PolicyError, Usage, child_seed
from gradus.core.values import Json, JsonDict
from gradus.interop.serving.answers import ChatAnswer, answer_of
from gradus.interop.serving.generation import ContinuousBatch, Generation, Sampled
from gradus.interop.serving.requests import ApiError
from gradus.policies.local.conversation import Conversation, PendingTurn
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import free_sampling
from gradus.policies.local.text_ids import RunningText, TextIds

_CHARACTERS = 8  # of a token, at most on average: text has about four
Tools = Sequence[Json]


def begin_chat(loaded: LoadedModel, messages: Sequence[Message], asked: Asked) -> tuple[Conversation, PendingTurn]:
    """A whole conversation, up to where the model speaks. Without a system message it gets the one it was trained with.

    Raises ApiError for what cannot be rendered.
    """
    texts = [message.content for message in messages]
    # Tools stand in the prompt too.
    check_length(loaded, [json.dumps(asked.tools), *texts], "messages")
    conversation = _conversation(loaded, loaded.settings.system_prompt)
    try:
        return conversation, conversation.pending(Observation(text="", messages=tuple(messages), asked=asked))
    except ConfigError as error:
        raise ApiError(str(error), param="tools", code="unsupported_parameter") from error
    except PolicyError as error:
        raise ApiError(f"messages: {error}", param="messages") from error


def _conversation(loaded: LoadedModel, system_prompt: str, tools: Tools = ()) -> Conversation:
    # Of an episode's start a conversation reads the words alone.
    nothing: Any = None
    start = EpisodeStart(
        task=nothing, system_prompt=system_prompt, key=(), group=0, member=0, environment=nothing, tools=tuple(tools)
    )
    return Conversation(start, loaded.renderer)


def check_length(loaded: LoadedModel, texts: Iterable[str], param: str) -> None:
    """Raises ApiError for what cannot fit the context. It is measured before it is split into tokens, which holds up the server."""
    context = loaded.context
    length = sum(map(len, texts))
    if context is not None and length > _CHARACTERS * context:
        raise ApiError(
            f"the prompt has {length} characters; a context of {context} tokens takes at most {_CHARACTERS * context}",
            param=param,
            code="context_length_exceeded",
        )


class ReplyText:
    """Text of tokens, up to a stop string. With stop strings nothing is shown before the end, for it could be one of them.

    ``opened``: what the prompt has begun and the text repeats.
    """

    def __init__(self, ids: TextIds, opened: str = "", stops: Sequence[str] = ()) -> None:
        self._decode = ids.decode
        self._opened = opened
        self._begin = len(opened)  # what the prompt says does not stop the answer
        self._stops = stops
        self._running = RunningText(ids.decode)
        self._spelled = ""
        self.tokens: list[Sampled] = []
        # What was shown so far, and the whole text as soon as ``finish`` says why it ended.
        self.text = ""
        self.finish = ""

    def add(self, token: Sampled) -> str:
        """Returns the text that can be shown now."""
        self.tokens.append(token)
        piece = self._running.add(token.id) if token.finish is None else ""
        self._spelled += piece
        # The running text leaves out what may still change, so all tokens are decoded at an end.
        if token.finish is not None or any(stop in self._spelled for stop in self._stops):
            text = self._up_to_stop(token)
            if self.finish:
                length = len(self.text)
                self.text = text
                return text[length:]
        if not piece or self._stops:
            return ""
        if not self.text:
            piece = self._opened + piece
        self.text += piece
        return piece

    @property
    def ids(self) -> list[int]:
        """All sampled ids, the stop token included."""
        return [token.id for token in self.tokens]

    def _up_to_stop(self, last: Sampled) -> str:
        """The text as all tokens together spell it, up to a stop string; sets ``finish`` if this is its end."""
        # The stop token itself is no part of the text.
        ids = self.ids[:-1] if last.finish == "stop" else self.ids
        text = self._opened + self._decode(ids)
        # The first of several stop strings counts.
        places = [text.find(stop, self._begin) for stop in self._stops]
        end = min((place for place in places if place >= 0), default=None)
        self.finish = "stop" if end is not None else last.finish or ""
        return text[:end]


class LocalChoice:
    """An answer of the local model on its way, from the model's thread to the loop that this is made in.

    ``chat``: the conversation that it belongs to, and its turn there; None for a plain completion. ``whole``: it comes in one piece, for
    whether it is a call of a tool is known at the end.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        generation: Generation,
        *,
        stops: Sequence[str] = (),
        chat: tuple[Conversation, PendingTurn] | None = None,
        whole: bool = False,
    ) -> None:
        self.generation = generation
        self._chat = chat
        self._whole = whole
        self.text = ReplyText(loaded.renderer.ids, loaded.renderer.opened if chat else "", stops)
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Sampled | Exception] = asyncio.Queue()
        generation.tell = self.tell

    def tell(self, token: Sampled | Exception) -> None:
        """Bring what was sampled to the loop."""
        with suppress(RuntimeError):  # the loop may be gone when the server closes
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, token)

    async def parts(self) -> AsyncIterator[str | ChatAnswer]:
        """Texts as they come, then the answer."""
        while not self.text.finish:
            token = await self._arrived.get()
            if isinstance(token, Exception):
                raise token
            piece = self.text.add(token)
            if piece and not self._whole:
                yield piece
        yield self._answer()

    def leave(self) -> None:
        """Let the row leave the batch."""
        self.generation.cancelled = True

    def _answer(self) -> ChatAnswer:
        reply = self.text
        if self._chat is None:
            usage = Usage(prompt_tokens=len(self.generation.prompt), completion_tokens=len(reply.tokens))
            said = Message(role="assistant", content=reply.text)
            return ChatAnswer(message=said, finish=reply.finish, usage=usage)
        conversation, turn = self._chat
        action = conversation.add_answer(turn, reply.ids, [token.logprob for token in reply.tokens])
        seed = self.generation.seed
        return answer_of(action, action.message, lambda place: f"call_{child_seed(seed, 'call', place) % 16**9:09x}")


def chat_loop(
    loaded: LoadedModel,
    *,
    ask: Callable[[], str | None],
    show: Callable[[str], None],
    system_prompt: str | None = None,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
) -> list[JsonDict]:
    """Ask, answer, and remember, until ``ask`` gives None. Returns the conversation.

    ``system_prompt``: None for the one that the model was trained with, empty for none.
    ``show`` gets the answer in pieces as it is sampled, and a line break at its end. ``/new`` forgets the conversation.
    Raises ContextLengthError when the conversation no longer fits.
    """
    opening: list[JsonDict] = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages = list(opening)
    system = loaded.settings.system_prompt if system_prompt is None else system_prompt
    conversation = _conversation(loaded, system, loaded.settings.tools)
    batch = ContinuousBatch(loaded, rows=1)
    sampling = sampling or free_sampling(loaded.settings)
    batch.start()
    number = 0
    try:
        for line in iter(ask, None):
            if line.strip() == "/new":
                messages = list(opening)
                conversation = _conversation(loaded, system, loaded.settings.tools)
                continue
            turn = conversation.pending(Observation(text=line))
            budget = batch.room(turn.prompt, None, sampling.max_new_tokens)
            draws = child_seed(seed, number)
            generation = Generation(prompt=turn.prompt, sampling=sampling, budget=budget, seed=draws)
            text = asyncio.run(_shown_answer(batch, generation, (conversation, turn), show))
            messages += [{"role": "user", "content": line}, {"role": "assistant", "content": text}]
            show("\n")
            number += 1
        return messages
    finally:
        batch.close()


async def _shown_answer(
    batch: ContinuousBatch,
    generation: Generation,
    chat: tuple[Conversation, PendingTurn],
    show: Callable[[str], None],
) -> str:
    """The text of an answer; ``show`` gets it in pieces."""
    choice = LocalChoice(batch.loaded, generation, chat=chat)
    batch.submit(generation)
    async for part in choice.parts():
        if isinstance(part, str):
            show(part)
    return choice.text.text
