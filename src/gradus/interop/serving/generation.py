"""Continuous batching: requests join and leave a running batch every few tokens.

One thread owns the model. All rows sample a few tokens at once, by the decoder that training samples with; then rows that are done leave,
and requests that wait join. Every row has its own sampling settings and its own randomness.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from gradus.core import Asked, ContextLengthError, PolicyError, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.decoding import Answer, Prompt
from gradus.policies.local.grammar import Grammar
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig

# Tokens that are sampled before others may join. A model without our cache reads its prompts again each time.
_TOKENS = 8
_TOKENS_WITHOUT_CACHE = 256
_SCORED = 256  # tokens of a prompt whose log-probs are computed at once


@frozen_record
class Sampled:
    """One token."""

    id: int
    # Of the distribution that it was drawn from; 0 if it is greedy.
    logprob: float
    # Stop or length, at the last.
    finish: str | None = None


@frozen_record
class TokenScore:
    """How likely a token is: its log-prob at temperature 1, and the likeliest token at its place with its own."""

    logprob: float
    best: int
    best_logprob: float


@dataclass(eq=False, kw_only=True)
class Generation:
    """A request on its way."""

    prompt: Sequence[int]
    # Rows that have the same are drawn together.
    sampling: SamplingConfig
    # Tokens at most.
    budget: int
    seed: int
    # Called from the model's thread with each token, or with the exception that ended it.
    tell: Callable[[Sampled | Exception], None] = lambda _: None
    # Ids that end it, besides the model's own.
    stops: frozenset[int] = frozenset()
    # The prompt's own tokens are scored too.
    scored: bool = False
    # What the answer must follow, and its state behind the tokens so far.
    grammar: Grammar | None = None
    state: Hashable = None
    prompt_scores: list[TokenScore] = field(default_factory=list["TokenScore"])  # of its tokens behind the first
    # Anyone may set it; the row then leaves the batch before the next tokens.
    cancelled: bool = False
    ids: list[int] = field(default_factory=list[int])
    place: int = -1  # in the cache
    read: int = 0  # tokens that the cache holds
    uniforms: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.uniforms = np.random.default_rng(child_seed(self.seed, "generation"))


class ContinuousBatch:
    """A model that answers up to ``rows`` requests at once; more wait their turn. ``start`` and ``close`` bracket its thread."""

    def __init__(self, loaded: LoadedModel, *, rows: int = 32, constrain: bool = False) -> None:
        self.loaded = loaded
        self.rows = rows
        self._closing = False
        self._policy = LocalPolicy(loaded, SamplingConfig(constrain=constrain))
        self.grammar_for = self._policy.grammar_for
        if constrain:
            self.grammar_for(Asked(schema={"type": "null"}))  # what is missing is said before any client comes
        self._tokens = _TOKENS if self._policy.plan else _TOKENS_WITHOUT_CACHE
        self._waiting: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._active: list[Generation] = []
        self._places = 0  # rows that the decoder has room for
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="gradus-generation", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; requests that are under way end with an error."""
        if self._thread is not None:
            self._closing = True
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    @property
    def waiting(self) -> int:
        """Requests that wait for a row."""
        return self._waiting.qsize()

    def room(self, prompt: Sequence[int], budget: int | None, default: int) -> int:
        """Tokens that may be sampled behind ``prompt``. Raises ContextLengthError if it, or the budget that a request names, does not fit."""
        limit = self.loaded.context
        if limit is None:
            return budget or default
        if len(prompt) + (budget or 1) > limit:
            more = f"{budget} more were asked for" if budget is not None else "the answer needs at least one"
            raise ContextLengthError(
                f"this model's context holds {limit} tokens, but the prompt has {len(prompt)} and {more}; shorten the prompt or "
                "lower max_tokens"
            )
        return budget or min(default, limit - len(prompt))

    def submit(self, generation: Generation) -> None:
        """Queue a request. Raises PolicyError if the thread is not running."""
        if self._thread is None:
            raise PolicyError("the model is not running; call start first")
        self._waiting.put(generation)

    # -- the model's thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._admit() and not self._closing:
            try:
                self._sample()
            except Exception as error:  # whatever breaks costs the requests under way, not the server
                self._fail(error)
        closing = PolicyError("the server is closing")
        self._fail(closing)
        with suppress(queue.Empty):
            while True:
                generation = self._waiting.get_nowait()
                if generation is not None:
                    generation.tell(closing)

    def _admit(self) -> bool:
        """Take in waiting requests; wait for one if nothing is under way. False when the batch was closed."""
        # Rows of clients that left cost a row of the batch until here.
        self._active = [row for row in self._active if not row.cancelled]
        while len(self._active) < self.rows:
            if not self._active:
                self._let_go()
            try:
                generation = self._waiting.get(block=not self._active)
            except queue.Empty:
                break
            if generation is None:
                return False
            if generation.cancelled:
                continue
            try:
                if generation.scored:
                    generation.prompt_scores = self._scores(generation.prompt)
            except Exception as error:
                generation.tell(error)
            else:
                self._active.append(generation)
        return True

    def _scores(self, prompt: Sequence[int]) -> list[TokenScore]:
        """How likely the model finds each token of a prompt behind the first."""
        ids = torch.tensor([list(prompt)], device=self.loaded.device)
        scores: list[TokenScore] = []
        with evaluating(self.loaded):
            logits = self.loaded.model(input_ids=ids).logits[0, :-1]
            # A softmax of all places at once would hold the logits twice, in float32.
            for start in range(0, len(logits), _SCORED):
                part = logits[start : start + _SCORED]
                targets = ids[0, 1 + start : 1 + start + _SCORED]
                logprobs = part.float().log_softmax(-1)
                of_targets = logprobs.gather(-1, targets[:, None])[:, 0]
                best = logprobs.max(-1)
                columns = of_targets.tolist(), best.indices.tolist(), best.values.tolist()
                for logprob, token, highest in zip(*columns, strict=True):
                    scores.append(TokenScore(logprob=logprob, best=token, best_logprob=highest))
        return scores

    def _sample(self) -> None:
        """Sample a few tokens for each active row, and drop the rows that are done."""
        self._find_places()
        # A decoder draws with one setting, so rows are sampled by setting.
        by_settings: dict[SamplingConfig, list[Generation]] = {}
        for row in self._active:
            by_settings.setdefault(row.sampling, []).append(row)
        for settings, rows in by_settings.items():
            self._decoder.sampling = settings
            answers = self._decoder.answer([self._prompt(row) for row in rows])
            for row, answer in zip(rows, answers, strict=True):
                # The last token of an answer was drawn, but is not in the cache yet.
                row.read = len(row.prompt) + len(row.ids) + len(answer.ids) - 1
                row.state = answer.state
                if self._say(row, answer):
                    self._active.remove(row)

    def _find_places(self) -> None:
        """Give each row a place in the cache. One that is too small gives way to a larger one, into which all is read again."""
        if len(self._active) > self._places:
            self._places = min(self.rows, max(len(self._active), 2 * self._places))
            self._decoder = self._policy.decoder(self._places)
            for row in self._active:
                row.place = -1
                row.read = 0
        # A row keeps its place: its keys and values lie there.
        free = set(range(self._places)) - {row.place for row in self._active}
        for row in self._active:
            if row.place < 0:
                row.place = free.pop()

    def _prompt(self, row: Generation) -> Prompt:
        ids = [*row.prompt, *row.ids]
        budget = min(self._tokens, row.budget - len(row.ids))
        # As many as may be drawn, so that a row's randomness does not depend on the others.
        uniforms = row.uniforms.random(self._tokens)
        return Prompt(
            row=row.place,
            past=row.read,
            new=tuple(ids[row.read :]),
            uniforms=uniforms,
            budget=budget,
            grammar=row.grammar,
            state=row.state,
        )

    def _say(self, row: Generation, answer: Answer) -> bool:
        """Tell the asker of new tokens; true if the last was among them."""
        for token, logprob in zip(answer.ids, answer.logprobs, strict=True):
            row.ids.append(token)
            # Weights that overflow would otherwise look like an answer.
            if not math.isfinite(logprob):
                row.tell(PolicyError("the model's logits are not finite, so nothing can be drawn; serve other weights"))
                return True
            finish = "length" if len(row.ids) >= row.budget else None
            if token in self.loaded.renderer.stop_ids or token in row.stops:
                finish = "stop"
            row.tell(Sampled(id=token, logprob=logprob, finish=finish))
            if finish is not None:
                return True
        return False

    def _fail(self, error: Exception) -> None:
        for row in self._active:
            row.tell(error)
        self._active = []
        self._let_go()

    def _let_go(self) -> None:
        """Free the cache: every row of it has room for the longest one that was under way."""
        self._places = 0
        self._decoder = self._policy.decoder(1)
