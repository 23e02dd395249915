"""One batch of rows: prefill what is new, then decode all answers at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core.frozen_record import frozen_record
from gradus.policies.local.grammar import Grammar
from gradus.policies.local.kv_cache import MaskPlan, RaggedCache
from gradus.policies.local.llama_forward import causal_model, decode_hidden, has_lean_decoder
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.sampling import SamplingConfig, Uniforms, draw_tokens, legal_mask
from gradus.policies.local.text_ids import TokenIds

_WORTH_SHARING = 4  # tokens of a common prefix below which one forward more costs more than it saves
_PADDING = 1.5  # a prefill that would compute this many times its tokens is cut into batches of similar length
_MASK_ENTRIES = 2**26  # rows x new tokens x positions of one forward; a mask of that many takes 256 MiB in float32
_FIRST_CAPACITY = 256  # positions a row; doubled when they are used up
Masks = dict[tuple[Grammar, Hashable], Tensor]  # what is legal in a state of a grammar


@frozen_record
class Prompt:
    """The tokens that one row reads before it answers."""

    # Its index in the batch.
    row: int
    # Tokens of it that the cache holds, 0 at a restart.
    past: int
    # The ids to read.
    new: TokenIds
    # One number in [0, 1) per token that may be sampled.
    uniforms: Uniforms
    # How many tokens that are, at least 1.
    budget: int
    # What its answer must follow.
    grammar: Grammar | None = None
    # Of the grammar, behind what was said before; None where an answer begins.
    state: Hashable = None

    @property
    def end(self) -> int:
        """Tokens that the row has at most behind its answer."""
        return self.past + len(self.new) + self.budget

    def begun(self) -> Answer:
        """Returns the answer before its first token."""
        if self.grammar is None:
            return Answer()
        return Answer(legal=[], state=self.grammar.begin() if self.state is None else self.state)


@dataclass
class Answer:
    """The sampled answer to one prompt."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    # The legal ids at each token, if a grammar was in force.
    legal: list[TokenIds] | None = None
    # Of the grammar, behind the last of them.
    state: Hashable = None
    stopped: bool = False


class Drawing:
    """Draws the answers to one batch of prompts, a token of some of them at a time.

    ``masks``: what is legal in the states of the grammars, as far as they were made.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        stops: frozenset[int],
        masks: Masks,
    ) -> None:
        self._grammars = {prompt.row: prompt.grammar for prompt in prompts if prompt.grammar is not None}
        self.answers = {prompt.row: prompt.begun() for prompt in prompts}
        self._place_of = {prompt.row: place for place, prompt in enumerate(prompts)}
        # On the CPU: the numbers of one step are moved, not the table.
        self._uniforms = torch.from_numpy(np.stack([prompt.uniforms for prompt in prompts]))
        self._sampling = sampling
        self._stops = stops
        self._masks = masks

    def draw(self, logits: Tensor, rows: Sequence[int], step: int) -> Tensor:
        """Draw a token (n,) of each of these rows from logits (n, V). An answer that has ended stays as it is."""
        places = [self._place_of[row] for row in rows]
        uniforms = self._uniforms[places, step].to(logits.device)
        tokens, logprobs = draw_tokens(logits, uniforms, self._sampling, self._legal(logits, rows))
        ids: list[int] = tokens.tolist()  # pyright: ignore[reportUnknownVariableType]
        values: list[float] = logprobs.tolist()  # pyright: ignore[reportUnknownVariableType]
        for row, token, logprob in zip(rows, ids, values, strict=True):
            answer = self.answers[row]
            # GeneralDecoder goes on with rows that have ended until the last one has.
            if answer.stopped:
                continue
            answer.ids.append(token)
            answer.logprobs.append(logprob)
            answer.stopped = token in self._stops
            grammar = self._grammars.get(row)
            if grammar is not None and answer.legal is not None:
                # The trainer needs what was legal to know the distribution that was drawn from.
                answer.legal.append(grammar.legal(answer.state))
                if not answer.stopped:
                    answer.state = grammar.advance(answer.state, token)
        return tokens

    def _legal(self, logits: Tensor, rows: Sequence[int]) -> Tensor | None:
        """(n, V) masks of the rows' states; each state's mask is made once. All is legal without a grammar."""
        if not self._grammars:
            return None
        return torch.stack([self._mask(row, logits) for row in rows])

    def _mask(self, row: int, logits: Tensor) -> Tensor:
        grammar = self._grammars.get(row)
        if grammar is None:
            return torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
        state = self.answers[row].state
        key = (grammar, state)
        if key not in self._masks:
            ids = grammar.legal(state)
            self._masks[key] = legal_mask(ids, logits.shape[-1], device=logits.device)
        return self._masks[key]


def common_prefix(sequences: Sequence[TokenIds]) -> int:
    """Returns how many tokens all sequences begin with."""
    low = min(sequences)
    high = max(sequences)  # what the extremes share, all share, and none is shorter
    count = 0
    for one, other in zip(low, high, strict=False):
        if one != other:
            break
        count += 1
    return count


def _similar(lengths: Sequence[int], past: int) -> list[list[int]]:
    """Cut rows into batches that waste little on padding and whose attention masks stay small, shortest rows first."""

    def fits(count: int, longest: int, total: int) -> bool:
        entries = count * longest * (past + longest)
        return longest * count <= _PADDING * total and entries <= _MASK_ENTRIES

    rows = list(range(len(lengths)))
    if fits(len(rows), max(lengths), sum(lengths)):
        return [rows]
    batch: list[int] = []
    batches = [batch]
    total = 0
    # Neighbors in this order differ least in length, so that little is padding.
    for row in sorted(rows, key=lengths.__getitem__):
        total += lengths[row]
        if batch and not fits(len(batch) + 1, lengths[row], total):
            batch = []
            batches.append(batch)
            total = lengths[row]
        batch.append(row)
    return batches


class Decoder:
    """Rows that share a cache. Rows that take part stand in its first slots, so that attention reads it without a copy."""

    def __init__(
        self,
        loaded: LoadedModel,
        sampling: SamplingConfig,
        plan: MaskPlan,
        *,
        rows: int,
        stops: frozenset[int],
    ) -> None:
        self._loaded = loaded
        self._device = loaded.device
        self._dtype = loaded.dtype
        self.sampling = sampling
        self._plan = plan
        causal: Any = causal_model(loaded.model)
        # The lean decoder knows one kind of mask, and attends by our own kernels.
        plain_attention = plan.window is None and causal.config._attn_implementation == "sdpa"
        self._lean = causal if plain_attention and has_lean_decoder(causal) else None
        capacity = min(_FIRST_CAPACITY, loaded.context or _FIRST_CAPACITY)
        self._cache = RaggedCache(rows, capacity)
        # Where each row stands in the cache, and which row stands in each slot.
        self._slot_of = list(range(rows))
        self._row_at = list(range(rows))
        # Tokens of each row that the cache holds.
        self._lengths = [0] * rows
        self._stops = stops
        self._masks: Masks = {}

    def answer(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Read all prompts and sample an answer to each; the last token of an answer is not in the cache yet."""
        # The cache grows once to what is needed, not at every token.
        self._cache.expected = max(prompt.end for prompt in prompts)
        prompt_of = {prompt.row: prompt for prompt in prompts}
        with evaluating(self._loaded):
            rows, logits = self._prefill(prompt_of)
            answers = self._decode(prompt_of, rows, logits)
        return [answers[row] for row in prompt_of]

    # -- prefill --------------------------------------------------------------------------------------------------

    def _prefill(self, prompt_of: Mapping[int, Prompt]) -> tuple[list[int], Tensor]:
        """Read every prompt. Returns the row in each slot and the logits (n, V) in that order."""
        leaders: dict[TokenIds, int] = {}
        leader_of: dict[int, int] = {}  # of rows whose prompt equals an earlier one from its first token on
        for row, prompt in prompt_of.items():
            self._lengths[row] = prompt.past
            leader = row if prompt.past else leaders.setdefault(prompt.new, row)
            if leader != row:
                leader_of[row] = leader
        # Only rows that are read take part in the forward passes of the prefill.
        rows = self._to_front([row for row in prompt_of if row not in leader_of])
        shared = self._share_prefix(leaders)
        news: list[TokenIds] = []
        pasts: list[int] = []
        for row in rows:
            past = prompt_of[row].past
            new = prompt_of[row].new
            skipped = 0 if past else shared
            news.append(new[skipped:])
            pasts.append(past + skipped)
            self._lengths[row] = past + len(new)
        logits = self._read_in_batches(news, pasts)
        if not leader_of:
            return rows, logits
        # Rows whose prompt equals another one get its cache and its logits.
        place_of = {row: place for place, row in enumerate(rows)}
        rows = self._to_front(list(prompt_of))
        self._copy(leader_of)
        places = [place_of[leader_of.get(row, row)] for row in rows]
        return rows, logits[places]

    def _share_prefix(self, leaders: Mapping[TokenIds, int]) -> int:
        """Read what all these prompts begin with once, in the first one's row, and copy it to the others."""
        if len(leaders) < 2:
            return 0
        shared = common_prefix([new[:-1] for new in leaders])  # one token stays, for the logits behind it
        # Few tokens are read faster by all rows at once than by one row before the others.
        if shared < _WORTH_SHARING:
            return 0
        (first, row), *others = leaders.items()
        slot = self._slot_of[row]
        self._forward([first[:shared]], [0], slots=[slot])
        self._lengths[row] = shared
        self._copy({other: row for _, other in others})
        return shared

    def _copy(self, source_of: Mapping[int, int]) -> None:
        """Let rows begin as other ones do."""
        sources = [self._slot_of[source] for source in source_of.values()]
        targets = [self._slot_of[row] for row in source_of]
        # As far as the longest reaches: what a shorter one has behind its end is overwritten before it is read.
        width = max(self._lengths[source] for source in source_of.values())
        self._cache.copy(sources, targets, width)
        for row, source in source_of.items():
            self._lengths[row] = self._lengths[source]

    def _read_in_batches(self, news: Sequence[TokenIds], pasts: Sequence[int]) -> Tensor:
        """One forward if lengths are alike, else one for each batch of similar lengths. Logits (n, V) in slot order."""
        batches = _similar([len(new) for new in news], max(pasts))
        if len(batches) == 1:
            return self._forward(news, pasts)
        logits: list[Tensor] = []
        slots: list[int] = []
        for batch in batches:
            batch_news = [news[slot] for slot in batch]
            batch_pasts = [pasts[slot] for slot in batch]
            logits.append(self._forward(batch_news, batch_pasts, slots=batch))
            slots += batch
        place_of_slot = torch.tensor(slots, device=self._device).argsort()
        return torch.cat(logits)[place_of_slot]

    # -- decode ---------------------------------------------------------------------------------------------------

    def _decode(
        self,
        prompt_of: Mapping[int, Prompt],
        rows: list[int],
        logits: Tensor,
    ) -> Mapping[int, Answer]:
        prompts = list(prompt_of.values())
        drawing = Drawing(prompts, self.sampling, self._stops, self._masks)
        answers = drawing.answers
        budgets = {row: prompt.budget for row, prompt in prompt_of.items()}
        for step in range(max(budgets.values())):
            drawing.draw(logits, rows, step)
            # A row leaves as soon as it has ended: what is computed is only what is still sampled.
            open_rows = [row for row in rows if step + 1 < budgets[row]]
            going = [row for row in open_rows if not answers[row].stopped]
            if not going:
                break
            if len(going) < len(rows):
                rows = self._to_front(going)
            pasts = [self._lengths[row] for row in rows]
            news = [answers[row].ids[-1:] for row in rows]
            logits = self._forward(news, pasts)
            for row in rows:
                self._lengths[row] += 1
        return answers

    # -- slots and forwards ---------------------------------------------------------------------------------------

    def _to_front(self, rows: Sequence[int]) -> list[int]:
        """Bring rows to slots 0..n-1, moving as few as possible; returns the row in each."""
        count = len(rows)
        coming = set(rows)
        # Rows that stand in front already stay; only as many move as there are holes.
        holes = [slot for slot in range(count) if self._row_at[slot] not in coming]
        movers = [row for row in rows if self._slot_of[row] >= count]
        if holes:
            leavers = [self._row_at[hole] for hole in holes]
            width = max(self._lengths[row] for row in (*leavers, *movers))
            slots = [self._slot_of[row] for row in movers]
            self._cache.swap(holes, slots, width)
            for hole, slot, leaver, mover in zip(holes, slots, leavers, movers, strict=True):
                self._row_at[hole] = mover
                self._row_at[slot] = leaver
                self._slot_of[mover] = hole
                self._slot_of[leaver] = slot
        return self._row_at[:count]

    def _forward(
        self,
        news: Sequence[Sequence[int]],
        pasts: Sequence[int],
        *,
        slots: Sequence[int] | None = None,
    ) -> Tensor:
        """Run new tokens through the model, padded on the left; logits (n, V) of each row's last one.

        ``slots`` are the cache slots of the rows; None means the first n.
        """
        count = len(news)
        lengths = [len(new) for new in news]
        longest = max(lengths)
        width = max(map(add, pasts, lengths))
        places = torch.arange(longest)
        positions = torch.tensor(pasts)[:, None] + places
        valid = None
        if min(lengths) < longest:
            # Padding stands on the left, so that the last column is the last token of all rows.
            padding = [0] * longest
            news = [[*padding[len(new) :], *new] for new in news]
            pads = longest - torch.tensor(lengths)[:, None]
            valid = (places >= pads).to(self._device)
            positions = (positions - pads).clamp_(min=0)
        ids = torch.tensor(news).to(self._device)
        positions = positions.to(self._device)
        # One slice per layer instead of an index: most steps of a batch of equal prompts are this case.
        if valid is None and slots is None and min(pasts) == max(pasts):
            self._cache.aim_together(count, pasts[0], width)
        else:
            rows = None if slots is None else torch.tensor(slots, device=self._device)
            self._cache.aim(positions, valid, width, slots=rows)
        mask = self._plan.masks(positions, width, self._dtype)
        if self._lean is None:
            out = self._loaded.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                **self._plan.cached(self._cache),
            )
            return out.logits[:, -1]
        assert isinstance(mask, Tensor)  # a lean decoder has one kind of layer
        last = torch.arange(longest - 1, count * longest, longest, device=self._device)
        attend = partial(self._cache.attend, count, mask)
        positions = positions.reshape(1, -1)
        return self._lean.lm_head(decode_hidden(self._lean, ids.view(1, -1), positions, attend, last))
