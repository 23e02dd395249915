"""A language model in this process, in many episodes at once."""

from __future__ import annotations

import gc
import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from gradus.core import (
    Action,
    Asked,
    ConfigError,
    ContextLengthError,
    EpisodeStart,
    Failure,
    Observation,
    PolicyError,
    Request,
    StopReason,
    TurnTokens,
    Usage,
)
from gradus.policies.local.conversation import Conversation
from gradus.policies.local.decoding import Answer, Decoder, Prompt
from gradus.policies.local.general_decoding import GeneralDecoder
from gradus.policies.local.grammar import WordGrammar
from gradus.policies.local.kv_cache import cache_plan
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.renderers import ChatRenderer, answer_message
from gradus.policies.local.sampling import SamplingConfig, turn_uniforms


class LocalPolicy:
    """A transformers causal language model as a policy.

    Each episode keeps its key-value cache from turn to turn: a turn costs one forward over its new tokens and one for
    each further token of the answer. Prompts that several rows share are computed once.

    Args:
        loaded: what :func:`~gradus.policies.local.loading.load_model` gives.
        sampling: how tokens are drawn.
        name: the policy's name in results.
        batch_size: rows that go through the model at once, and that a cache is kept for; None for all. Smaller needs less memory
            and more time.
        grammar: legal words at each place of an answer (``EnvironmentSpec.grammar``); used where
            ``sampling.grammar`` is set.

    Raises:
        ConfigError: ``sampling.grammar`` without a grammar, or a model that cannot be driven with a cache.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sampling: SamplingConfig,
        *,
        name: str = "local",
        batch_size: int | None = None,
        grammar: Sequence[Sequence[str]] | None = None,
    ) -> None:
        if sampling.grammar and grammar is None:
            raise ConfigError("sampling.grammar is set but there is no grammar; give one, or unset sampling.grammar")
        self.loaded, self.sampling, self.batch_size = loaded, sampling, batch_size
        self.grammar = None
        if sampling.grammar and grammar is not None:
            encode = partial(loaded.tokenizer.encode, add_special_tokens=False)
            self.grammar = WordGrammar(grammar, encode, loaded.renderer.stop_ids)
        self.plan = cache_plan(loaded)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def decoder(self, rows: int) -> Decoder | GeneralDecoder:
        """Returns what samples for ``rows`` episodes: over our own cache, or by transformers' code for architectures it does not fit."""
        if self.plan is None:
            return GeneralDecoder(self.loaded, self.sampling, self.grammar)
        return Decoder(self.loaded, self.sampling, self.plan, self.grammar, rows=rows)

    def start(self, episodes: Sequence[EpisodeStart]) -> LocalSession:
        """Open a session for episodes that run at once."""
        return LocalSession(self, episodes)


@dataclass
class _Row:
    """The state of one episode in a session."""

    start: EpisodeStart
    said: Conversation = field(default_factory=Conversation)
    turn: int = 0
    read: list[int] = field(default_factory=list[int])  # what its place in the cache holds


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A prompt on its way to an answer: what the row reads, and which part of it is context of this turn."""

    row: _Row
    prompt: Prompt
    context: tuple[int, ...]
    restart: bool
    asked: Asked


class LocalSession:
    """A local policy in the middle of many episodes: one cache slot each.

    With more episodes than ``batch_size`` rows take turns in a cache of that size, and read what they had read and said again at every
    turn. If memory runs out, half as many rows are computed at once from then on.
    """

    def __init__(self, policy: LocalPolicy, episodes: Sequence[EpisodeStart]) -> None:
        self._policy = policy
        self._rows = [_Row(start=start) for start in episodes]
        self._size = policy.batch_size or max(1, len(episodes))
        self._takes_turns = len(episodes) > self._size
        for start in episodes:
            policy.loaded.renderer.for_tools(
                start.tools
            )  # refused before anything is sampled; a call may end with its own token
        self._decoder: Decoder | GeneralDecoder | None = policy.decoder(min(self._size, max(1, len(episodes))))

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Answer all requests, in order. A prompt that does not fit fails its row alone.

        Raises:
            PolicyError: the session is closed, or memory runs out with one row.
        """
        if self._decoder is None:
            raise PolicyError("the session is closed; start a new one")
        actions: list[Action | None] = [None] * len(requests)
        while any(action is None for action in actions):
            try:
                self._answer(requests, actions)
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0] or "out of memory"
            else:
                break
            self._take_fewer(reason)  # the exception is gone, and with it the tensors of the batch
        return [action for action in actions if action is not None]

    def _answer(self, requests: Sequence[Request], actions: list[Action | None]) -> None:
        """Answer the requests that have no action yet, batch by batch."""
        readings = self._readings(requests, actions)
        assert self._decoder is not None
        for start in range(0, len(readings), self._size):
            batch = readings[start : start + self._size]
            prompts = [reading.prompt for _, reading in batch]
            if self._takes_turns:
                prompts = [replace(prompt, row=slot) for slot, prompt in enumerate(prompts)]
            for (place, reading), answer in zip(batch, self._decoder.answer(prompts), strict=True):
                actions[place] = self._finish(reading, answer)

    def _take_fewer(self, reason: str) -> None:
        """Half as many rows at once, in this session and those that follow."""
        if self._size == 1:
            raise PolicyError(
                f"out of memory while one row was sampled ({reason}); lower sampling.max_new_tokens, shorten the prompts, or choose a "
                "smaller model"
            )
        self._size = self._policy.batch_size = self._size // 2
        self._takes_turns, self._decoder = True, None
        gc.collect()
        torch.cuda.empty_cache()
        self._decoder = self._policy.decoder(self._size)
        print(f"out of memory: going on with batch_size = {self._size} in sampling", file=sys.stderr)

    def _readings(self, requests: Sequence[Request], actions: list[Action | None]) -> list[tuple[int, _Reading]]:
        """Returns what each row without an action must read, with its place; a prompt that does not fit has its failure in ``actions``."""
        readings: list[tuple[int, _Reading]] = []
        for place, request in enumerate(requests):
            if actions[place] is not None:
                continue
            try:
                readings.append((place, self._reading(request)))
            except (ContextLengthError, PolicyError) as error:  # a chat template may refuse a foreign agent's messages
                failure = Failure(stage="act", type=type(error).__name__, message=str(error))
                actions[place] = Action(failure=failure)
        return readings

    def close(self) -> None:
        """Free the cache."""
        self._decoder = None

    def _reading(self, request: Request) -> _Reading:
        """Returns what a row must read now: a whole prompt at a restart, else its unread tokens and the new frame."""
        row, seen = self._rows[request.row], request.observation
        asked = seen.asked or Asked(tools=row.start.tools)
        loaded, sampling = self._policy.loaded, self._policy.sampling
        renderer = loaded.renderer.for_tools(asked.tools)
        context, restart = row.said.context(renderer, row.start.system_prompt, seen)
        whole = context if restart else (*row.said.ids, *context)
        past = 0 if self._takes_turns else len(row.read) if not restart else _shared(row.read, whole, seen)
        budget = self._budget(len(whole))
        budget = min(budget, asked.max_tokens or budget)
        key = row.start.key if asked.seed is None else (*row.start.key, "asked", asked.seed)
        uniforms = turn_uniforms(key, row.turn, sampling.max_new_tokens)
        prompt = Prompt(row=request.row, past=past, new=tuple(whole[past:]), uniforms=uniforms, budget=budget)
        return _Reading(row=row, prompt=prompt, context=context, restart=restart, asked=asked)

    def _budget(self, length: int) -> int:
        """Tokens that may be sampled behind a prompt of ``length``: the configured number, or what the context leaves."""
        limit, wanted = self._policy.loaded.context, self._policy.sampling.max_new_tokens
        if limit is None:
            return wanted
        if length >= limit:
            raise ContextLengthError(
                f"the prompt has {length} tokens, but the model's context holds {limit} and the answer needs at least one "
                "of them; shorten the episode or its observations, restart the context, or use a model with a longer one"
            )
        return min(wanted, limit - length)

    def _finish(self, reading: _Reading, answer: Answer) -> Action:
        """Book what was sampled and say it in the words of the domain."""
        row, prompt, renderer = reading.row, reading.prompt, self._policy.loaded.renderer
        row.turn += 1
        if not all(map(math.isfinite, answer.logprobs)):
            message = "the model's logits are not finite, so nothing can be drawn; its weights have probably diverged"
            return Action(failure=Failure(stage="act", type="PolicyError", message=message))
        text = renderer.decode(answer.ids)
        places = [place for stop in reading.asked.stop if (place := text.find(stop)) >= 0]
        text, at_stop = text[: min(places, default=len(text))], bool(places)
        count = _spelled(reading.asked.stop, renderer, answer.ids) if at_stop else len(answer.ids)
        ids = tuple(answer.ids[:count])
        row.read[prompt.past :] = (*prompt.new, *ids[:-1])
        row.said.add(reading.context, ids, restart=reading.restart, cut=at_stop or not answer.stopped)
        tokens = TurnTokens(
            context_ids=reading.context,
            action_ids=ids,
            logprobs=tuple(answer.logprobs[:count]),
            restart=reading.restart,
            legal=None if answer.legal is None else tuple(answer.legal[:count]),
        )
        return Action(
            text=text,
            message=answer_message(renderer, reading.asked.tools, text),
            tokens=tokens,
            usage=Usage(prompt_tokens=prompt.past + len(prompt.new), completion_tokens=count),
            stop=None if answer.stopped or at_stop else StopReason.TOKEN_LIMIT,
            at_stop=at_stop,
        )


def _shared(read: Sequence[int], whole: Sequence[int], seen: Observation) -> int:
    """Says how much of a new prompt the row's place in the cache holds already. The environment's own restarts are read from the beginning."""
    if seen.asked is None:
        return 0
    pairs = zip(read, whole[:-1], strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(read), len(whole) - 1))


def _spelled(stops: Sequence[str], renderer: ChatRenderer, ids: Sequence[int]) -> int:
    """Returns how many tokens of an answer it takes to spell a stop string that it holds."""

    def holds(count: int) -> bool:
        return any(stop in renderer.decode(ids[:count]) for stop in stops)

    return bisect_left(range(len(ids)), True, key=holds)
