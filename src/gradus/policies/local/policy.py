"""A language model in this process, in many episodes at once."""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch

from gradus.core import Action, Asked, ConfigError, EpisodeStart, PolicyError, Request
from gradus.policies.local.conversation import Conversation, PendingTurn
from gradus.policies.local.decoding import Answer, Decoder, Prompt, common_prefix
from gradus.policies.local.general_decoding import GeneralDecoder
from gradus.policies.local.grammar import Grammar, WordGrammar
from gradus.policies.local.kv_cache import cache_plan
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig, turn_uniforms
from gradus.policies.local.schema_grammar import SchemaGrammar
from gradus.policies.local.text_ids import TokenIds

_KEPT_SCHEMAS = 64  # grammars of schemas, which may take some megabytes each


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
        self.loaded = loaded
        self.sampling = sampling
        self.batch_size = batch_size
        self.grammar = None
        if sampling.grammar:
            if grammar is None:
                raise ConfigError(
                    "sampling.grammar is set but there is no grammar; give one, or unset sampling.grammar"
                )
            # The grammar spells words as the tokenizer does in a line, without added tokens.
            encode = partial(loaded.tokenizer.encode, add_special_tokens=False)
            self.grammar = WordGrammar(grammar, encode, loaded.renderer.stop_ids)
        # Clients of a server may ask for any number of them.
        self._schema_grammar = lru_cache(maxsize=_KEPT_SCHEMAS)(self._make_schema_grammar)
        self.plan = cache_plan(loaded)
        self.name = name

    def decoder(self, rows: int, *, stops: frozenset[int] | None = None) -> Decoder | GeneralDecoder:
        """Returns what samples for ``rows`` episodes: over our own cache, or by transformers' code for architectures it does not fit.

        ``stops``: ids that end an answer; None for the renderer's.
        """
        stops = self.loaded.renderer.stop_ids if stops is None else stops
        if self.plan is None:
            return GeneralDecoder(self.loaded, self.sampling, stops)
        return Decoder(self.loaded, self.sampling, self.plan, rows=rows, stops=stops)

    def grammar_for(self, request: Asked) -> Grammar | None:
        """Returns what an answer must follow: the environment's grammar, or the schema that a call asks for.

        An answer that may call a tool instead, or that goes on from a beginning, is not constrained; nor is one to an empty schema.
        """
        free = request.tools or request.prefill or not request.schema
        if free or not self.sampling.constrain:
            return self.grammar
        return self._schema_grammar(json.dumps(request.schema))

    def _make_schema_grammar(self, schema: str) -> SchemaGrammar:
        return SchemaGrammar(json.loads(schema), self.loaded.tokenizer, self.loaded.renderer.stop_ids)

    def start(self, episodes: Sequence[EpisodeStart]) -> LocalSession:
        """Open a session for episodes that run at once."""
        return LocalSession(self, episodes)


class LocalSession:
    """A local policy in the middle of many episodes: one cache slot each.

    With more episodes than ``batch_size`` rows take turns in a cache of that size, and read what they had read and said again at every
    turn. If memory runs out, half as many rows are computed at once from then on.
    """

    def __init__(self, policy: LocalPolicy, episodes: Sequence[EpisodeStart]) -> None:
        self._policy = policy
        renderer = policy.loaded.renderer
        self._conversations = [Conversation(start, renderer) for start in episodes]
        self._cached: list[TokenIds] = [() for _ in episodes]  # tokens that each one's place in the cache holds
        self._size = policy.batch_size or max(1, len(episodes))
        # Rows that take turns leave nothing in the cache for their next turn.
        self._takes_turns = len(episodes) > self._size
        for start in episodes:
            renderer.for_tools(start.tools)  # refused before anything is sampled; a call may end with its own token
        rows = min(self._size, max(1, len(episodes)))
        self._decoder: Decoder | GeneralDecoder | None = policy.decoder(rows)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        """Answer all requests, in order. A prompt that does not fit fails its row alone.

        Raises:
            PolicyError: the session is closed, or memory runs out with one row.
        """
        actions: dict[int, Action] = {}
        while len(actions) < len(requests):
            if self._decoder is None:
                raise PolicyError("the session is closed; start a new one")
            try:
                self._answer(self._decoder, requests, actions)
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0] or "out of memory"
            else:
                break
            self._take_fewer(reason)  # the exception is gone, and with it the tensors of the batch
        return [actions[place] for place in range(len(requests))]

    def close(self) -> None:
        """Free the cache."""
        self._decoder = None

    def _answer(
        self, decoder: Decoder | GeneralDecoder, requests: Sequence[Request], actions: dict[int, Action]
    ) -> None:
        """Answer the requests that have no action yet, batch by batch."""
        turns: dict[int, PendingTurn] = {}
        prompt_of: dict[int, Prompt] = {}
        for place, request in enumerate(requests):
            if place in actions:
                continue
            try:
                turns[place] = self._conversations[request.row].pending(request.observation)
                prompt_of[place] = self._prompt(request, turns[place])
            except PolicyError as error:  # it is too long, or the chat template refuses a foreign agent's messages
                actions[place] = Action.failed(error)
        # Rows keep their order, so that a batch is the same in every run.
        waiting = list(prompt_of)
        for start in range(0, len(waiting), self._size):
            places = waiting[start : start + self._size]
            prompts = [prompt_of[place] for place in places]
            if self._takes_turns:
                prompts = [replace(prompt, row=slot) for slot, prompt in enumerate(prompts)]
            for place, answer in zip(places, decoder.answer(prompts), strict=True):
                actions[place] = self._action(requests[place].row, turns[place], answer)

    def _take_fewer(self, reason: str) -> None:
        """Half as many rows at once, in this session and those that follow."""
        if self._size == 1:
            raise PolicyError(
                f"out of memory while one row was sampled ({reason}); lower sampling.max_new_tokens, shorten the prompts, or choose a "
                "smaller model"
            )
        self._size = self._policy.batch_size = self._size // 2
        self._takes_turns = True
        self._decoder = None
        # Tensors of the failed batch may hang in cycles; they must be gone before a new cache is made.
        gc.collect()
        torch.cuda.empty_cache()
        self._decoder = self._policy.decoder(self._size)
        print(f"out of memory: going on with batch_size = {self._size} in sampling", file=sys.stderr)

    def _prompt(self, request: Request, turn: PendingTurn) -> Prompt:
        """Returns what a row must read now: a complete prompt at a restart, else its unread tokens and the new frame."""
        longest = self._policy.sampling.max_new_tokens
        past = self._past(request, turn)
        return Prompt(
            row=request.row,
            past=past,
            new=turn.prompt[past:],
            uniforms=turn_uniforms(turn.key, turn.number, longest),
            budget=turn.room(longest, self._policy.loaded.context, "model"),
            grammar=self._policy.grammar_for(turn.request),
        )

    def _past(self, request: Request, turn: PendingTurn) -> int:
        """Says how much of a prompt the row's place in the cache holds already. The environment's own restarts are read from the beginning."""
        cached = self._cached[request.row]
        if self._takes_turns:
            return 0
        if not turn.restart:
            return len(cached)
        if request.observation.asked is None:
            return 0
        # One token at least is read anew: its logits are what the first draw needs.
        return common_prefix([cached, turn.prompt[:-1]])

    def _action(self, row: int, turn: PendingTurn, answer: Answer) -> Action:
        # What is not a number would be trained on, and would break the weights for good.
        if not all(map(math.isfinite, answer.logprobs)):
            return Action.failed(
                PolicyError(
                    "the model's logits are not finite, so nothing can be drawn; its weights have probably diverged"
                )
            )
        action = self._conversations[row].add_answer(turn, answer.ids, answer.logprobs, answer.legal)
        assert action.tokens is not None
        # The last token of an answer was drawn, but no forward pass has read it yet.
        self._cached[row] = (*turn.prompt, *action.tokens.action_ids[:-1])
        return action
