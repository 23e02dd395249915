"""Continuous batching: requests join and leave a running batch between two tokens.

One thread owns the model and the cache. Rows that are being answered stand in the first slots of the cache; a finished row's
place is taken by the last one. Every row has its own sampling settings and its own randomness. An architecture that this cache does not
fit (Mamba, hybrids) answers one request after another, by transformers' ``generate``.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradus.core import ConfigError, ContextLengthError, PolicyError, child_seed
from gradus.policies.local.general_decoding import stream_tokens
from gradus.policies.local.kv_cache import RaggedCache
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.masks import cache_plan
from gradus.policies.local.sampling import SamplingConfig, draw, sampling_logprobs

_FIRST_CAPACITY = 256  # positions a row in the cache, doubled when they are used up
_SMALLEST_TEMPERATURE = 1e-5  # below it rows are greedy: logits that are divided by less may become infinite
_PREFILL_TOKENS = 2048  # prompt tokens that are read between two tokens of the others


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One token, with the log-prob of what it was drawn from, 0 if it is greedy. ``finish``: stop or length, at the last."""

    id: int
    logprob: float
    finish: str | None = None


@dataclass(eq=False, kw_only=True)
class Generation:
    """A request on its way. ``tell`` is called from the model's thread with each token, or with the exception that ended it.

    ``cancelled`` may be set by anyone; the row then leaves the batch before the next token.
    """

    prompt: Sequence[int]
    sampling: SamplingConfig
    seed: int
    tell: Callable[[Sampled | Exception], None]
    stops: frozenset[int] = frozenset()  # besides the model's own
    cancelled: bool = False
    ids: list[int] = field(default_factory=list)
    length: int = 0  # tokens in the cache
    drawn_by: SamplingConfig = field(init=False)  # rows that have the same are drawn together
    uniforms: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        greedy = self.sampling.temperature < _SMALLEST_TEMPERATURE
        self.drawn_by = self.sampling.changed(max_new_tokens=1, temperature=0 if greedy else None)
        self.uniforms = np.random.default_rng(child_seed(self.seed, "generation"))


class ContinuousBatch:
    """A model that answers up to ``rows`` requests at once; more wait their turn. ``start`` and ``close`` bracket its thread."""

    def __init__(self, loaded: LoadedModel, *, rows: int = 32) -> None:
        if rows < 1:
            raise ConfigError(f"rows must be at least 1, got {rows}")
        self.loaded = loaded
        self.rows = rows
        self._closing = False
        self._plan = cache_plan(loaded)

        self._waiting: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._active: list[Generation] = []  # by slot
        self._logits: Tensor | None = None  # (n, V) of the active rows
        self._cache = self._fresh_cache()
        self._thread: threading.Thread | None = None
        self.largest_batch = 0  # rows that were answered together at most, since the start

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

    def room(self, prompt: Sequence[int], wanted: int | None, default: int) -> int:
        """Tokens that may be sampled behind ``prompt``. Raises ContextLengthError if it, or what is wanted, does not fit."""
        limit = self.loaded.context
        if limit is None:
            return wanted or default
        if len(prompt) >= limit or (wanted is not None and len(prompt) + wanted > limit):
            raise ContextLengthError(
                f"this model's context holds {limit} tokens, but the prompt has {len(prompt)}"
                + (f" and {wanted} more were asked for" if wanted is not None else " and the answer needs at least one")
                + "; shorten the prompt or lower max_tokens"
            )
        return wanted or min(default, limit - len(prompt))

    def submit(self, generation: Generation) -> None:
        """Queue a request. Raises PolicyError if the thread is not running."""
        if self._thread is None:
            raise PolicyError("the model is not running; call start first")
        self._waiting.put(generation)

    # -- the model's thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        with evaluating(self.loaded):
            while not self._closing and self._admit():
                try:
                    self._token()
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
        read = 0
        rows = self.rows if self._plan else 1
        while len(self._active) < rows and read < _PREFILL_TOKENS:
            try:
                generation = self._waiting.get_nowait() if self._active else self._wait()
            except queue.Empty:
                break
            if generation is None:
                return False
            if generation.cancelled:
                continue
            try:
                self._prefill(generation)
                read += len(generation.prompt)
            except Exception as error:
                generation.tell(error)
        return True

    def _wait(self) -> Generation | None:
        """The next request. Every row of the cache had room for the longest one; it is given back, for nothing is under way."""
        self._cache = self._fresh_cache()
        return self._waiting.get()

    def _prefill(self, generation: Generation) -> None:
        """Read a whole prompt into the next free slot."""
        if self._plan is None:
            self._active.append(generation)
            self.largest_batch = 1
            return
        slot, length = len(self._active), len(generation.prompt)
        device = self.loaded.device
        if slot == self._cache.rows:
            self._cache.add_slots(min(2 * slot, self.rows))
        positions = torch.arange(length, device=device)[None]
        self._cache.aim(positions, None, length, slots=torch.tensor([slot], device=device))
        logits = self._forward(torch.tensor([list(generation.prompt)], device=device), positions, length)
        generation.length = length
        self._active.append(generation)
        self._logits = logits if self._logits is None else torch.cat([self._logits, logits])
        self.largest_batch = max(self.largest_batch, len(self._active))

    def _token(self) -> None:
        """Draw one token for each active row, drop the rows that are done, and read the tokens of the others."""
        for slot in reversed([slot for slot, row in enumerate(self._active) if row.cancelled]):
            self._drop(slot)
        if not self._active:
            return
        if self._plan is None:
            self._answer_alone(self._active[0])
            if not self._closing:  # an answer that closing broke off is told of it with the others
                self._active.clear()
            return
        finished = self._draw()
        for slot in reversed(finished):
            self._drop(slot)
        if not self._active:
            return
        device = self.loaded.device
        lengths = [row.length for row in self._active]
        positions = torch.tensor(lengths, device=device)[:, None]
        self._cache.aim(positions, None, max(lengths) + 1)
        ids = torch.tensor([[row.ids[-1]] for row in self._active], device=device)
        self._logits = self._forward(ids, positions, max(lengths) + 1)
        for row in self._active:
            row.length += 1

    def _answer_alone(self, row: Generation) -> None:
        """A whole answer, of a model without a cache that rows could share."""
        ended = False

        def token(logits: Tensor) -> int:
            nonlocal ended
            self._logits = logits
            ended = bool(self._draw())
            return row.ids[-1]

        budget = row.sampling.max_new_tokens
        stream_tokens(self.loaded, row.prompt, budget, token, lambda: ended or row.cancelled or self._closing)

    def _draw(self) -> list[int]:
        """Sample every row under its own settings. Returns the slots that are done, in order."""
        assert self._logits is not None
        by_settings: dict[SamplingConfig, list[int]] = {}
        for slot, row in enumerate(self._active):
            by_settings.setdefault(row.drawn_by, []).append(slot)
        finished: list[int] = []
        for settings, slots in by_settings.items():
            logprobs = sampling_logprobs(self._logits[slots], settings)
            uniforms = torch.tensor([self._active[slot].uniforms.random() for slot in slots], dtype=torch.float64)
            drawn = draw(logprobs, uniforms.to(logprobs.device)).clamp_(max=logprobs.shape[-1] - 1)
            # A greedy token has the log-prob 0 whatever the logits are.
            sound = self._logits[slots].amax(dim=-1).isfinite()
            chosen = logprobs.gather(-1, drawn[:, None]).squeeze(-1).where(sound, torch.nan).tolist()
            for place, (slot, token) in enumerate(zip(slots, drawn.tolist(), strict=True)):
                if self._say(self._active[slot], token, chosen[place]):
                    finished.append(slot)
        return sorted(finished)

    def _say(self, row: Generation, token: int, logprob: float) -> bool:
        """Tell the asker of one token; true if it was the last."""
        row.ids.append(token)
        if not math.isfinite(logprob):
            row.tell(PolicyError("the model's logits are not finite, so nothing can be drawn; serve other weights"))
            return True
        stopped, full = (
            token in self.loaded.renderer.stop_ids or token in row.stops,
            len(row.ids) >= row.sampling.max_new_tokens,
        )
        finish = "stop" if stopped else "length" if full else None
        row.tell(Sampled(id=token, logprob=logprob, finish=finish))
        return finish is not None

    def _drop(self, slot: int) -> None:
        """Let a row go; the last row moves into its slot."""
        last = len(self._active) - 1
        assert self._logits is not None
        if slot != last:
            self._cache.swap([slot], [last], max(self._active[slot].length, self._active[last].length))
            self._active[slot] = self._active[last]
            self._logits[slot] = self._logits[last]
        self._active.pop()
        self._logits = self._logits[:last] if last else None

    def _forward(self, ids: Tensor, positions: Tensor, width: int) -> Tensor:
        """Run (n, S) tokens; logits (n, V) behind the last of each."""
        assert self._plan is not None
        out = self.loaded.model(
            input_ids=ids,
            attention_mask=self._plan.masks(positions, width, self.loaded.dtype),
            position_ids=positions,
            **self._plan.cached(self._cache),
        )
        return out.logits[:, -1]

    def _fail(self, error: Exception) -> None:
        for row in self._active:
            row.tell(error)
        self._active, self._logits = [], None
        self._cache = self._fresh_cache()

    def _fresh_cache(self) -> RaggedCache:
        """One row at first: each takes the room of the longest."""
        return RaggedCache(1, min(_FIRST_CAPACITY, self.loaded.context or _FIRST_CAPACITY))
