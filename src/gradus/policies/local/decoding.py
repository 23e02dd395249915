"""One batch of rows: prefill what is new, then decode all answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add

import numpy as np
import torch
from torch import Tensor

from gradus.policies.local.grammar import GrammarState, WordGrammar
from gradus.policies.local.kv_cache import MaskPlan, RaggedCache
from gradus.policies.local.llama_forward import causal_model, decode_positions, has_lean_decoder
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.sampling import SamplingConfig, Uniforms, draw_tokens, legal_mask
from gradus.policies.local.text_ids import TokenIds

_WORTH_SHARING = 4  # tokens of a common prefix below which one forward more costs more than it saves
_PADDING = 1.5  # a prefill that would compute this many times its tokens is cut into batches of similar length
_MASK_ENTRIES = 2**26  # rows x new tokens x positions of one forward; a mask of that many takes 256 MiB in float32
_FIRST_CAPACITY = 256  # positions a row; doubled when they are used up


@dataclass(frozen=True, kw_only=True)
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

    @property
    def end(self) -> int:
        """Tokens that the row has at most behind its answer."""
        return self.past + len(self.new) + self.budget


@dataclass
class Answer:
    """The sampled answer to one prompt."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    # The legal ids at each token, if a grammar was in force.
    legal: list[TokenIds] | None = None
    stopped: bool = False


class Drawing:
    """Draws the answers to one batch of prompts, a token of some of them at a time.

    ``masks``: what is legal in the states of a grammar, as far as they were made.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        stops: frozenset[int],
        grammar: WordGrammar | None,
        masks: dict[GrammarState, Tensor],
    ) -> None:
        self.answers = [Answer(legal=[] if grammar else None) for _ in prompts]
        self._uniforms = torch.from_numpy(np.stack([prompt.uniforms for prompt in prompts]))
        self._states = [grammar.begin() for _ in prompts] if grammar else []
        self._sampling, self._stops, self._grammar, self._masks = sampling, stops, grammar, masks

    def draw(self, logits: Tensor, order: Sequence[int], step: int) -> Tensor:
        """Draw a token (n,) of each of the prompts ``order`` from logits (n, V). An answer that has ended stays as it is."""
        uniforms = self._uniforms[order, step].to(logits.device)
        tokens, logprobs = draw_tokens(logits, uniforms, self._sampling, self._legal(logits, order))
        for index, token, logprob in zip(order, tokens.tolist(), logprobs.tolist(), strict=True):
            answer = self.answers[index]
            if answer.stopped:
                continue
            answer.ids.append(token)
            answer.logprobs.append(logprob)
            answer.stopped = token in self._stops
            if self._grammar is not None and answer.legal is not None:
                state = self._states[index]
                answer.legal.append(self._grammar.legal(state))
                if not answer.stopped:
                    self._states[index] = self._grammar.advance(state, token)
        return tokens

    def _legal(self, logits: Tensor, order: Sequence[int]) -> Tensor | None:
        """(n, V) masks of the prompts' states; each state's mask is made once."""
        if self._grammar is None:
            return None
        states = [self._states[index] for index in order]
        for state in set(states).difference(self._masks):
            self._masks[state] = legal_mask(self._grammar.legal(state), logits.shape[-1], device=logits.device)
        return torch.stack([self._masks[state] for state in states])


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Returns how many tokens all sequences begin with."""
    low, high = min(sequences), max(sequences)  # what the extremes share, all share, and none is shorter
    for place, (one, other) in enumerate(zip(low, high, strict=False)):
        if one != other:
            return place
    return min(len(low), len(high))


def _similar(lengths: Sequence[int], past: int) -> list[list[int]]:
    """Cut rows into batches that waste little on padding and whose attention masks stay small, shortest rows first."""

    def fits(count: int, longest: int, total: int) -> bool:
        entries = count * longest * (past + longest)
        return longest * count <= _PADDING * total and entries <= _MASK_ENTRIES

    rows = list(range(len(lengths)))
    if fits(len(rows), max(lengths), sum(lengths)):
        return [rows]
    batches: list[list[int]] = []
    total = 0
    for row in sorted(rows, key=lengths.__getitem__):
        total += lengths[row]
        if not batches or not fits(len(batches[-1]) + 1, lengths[row], total):
            batches.append([])
            total = lengths[row]
        batches[-1].append(row)
    return batches


class Decoder:
    """Rows that share a cache. Rows that take part stand in its first slots, so that attention reads it without a copy."""

    def __init__(
        self,
        loaded: LoadedModel,
        sampling: SamplingConfig,
        plan: MaskPlan,
        grammar: WordGrammar | None,
        *,
        rows: int,
    ) -> None:
        self._loaded, self._device, self._dtype = loaded, loaded.device, loaded.dtype
        self.sampling, self._plan, self._grammar = sampling, plan, grammar
        causal = causal_model(loaded.model)
        lean = has_lean_decoder(causal) and plan.window is None and causal.config._attn_implementation == "sdpa"
        self._lean = causal if lean else None
        self._cache = RaggedCache(rows, min(_FIRST_CAPACITY, loaded.context or _FIRST_CAPACITY))
        self._slot_of, self._row_at = list(range(rows)), list(range(rows))
        self._lengths = [0] * rows  # tokens of each row that the cache holds
        self._stops = loaded.renderer.stop_ids
        self._masks: dict[GrammarState, Tensor] = {}

    def answer(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Read all prompts and sample an answer to each; the last token of an answer is not in the cache yet."""
        self._cache.expected = max(prompt.end for prompt in prompts)
        with evaluating(self._loaded):
            order, logits = self._prefill(prompts)
            return self._decode(prompts, order, logits)

    # -- prefill --------------------------------------------------------------------------------------------------

    def _prefill(self, prompts: Sequence[Prompt]) -> tuple[list[int], Tensor]:
        """Read every prompt. Returns the prompt index in each slot and the logits (n, V) in that order."""
        leaders: dict[TokenIds, int] = {}
        follows: dict[int, int] = {}  # prompts that equal an earlier one from their first token on
        for index, prompt in enumerate(prompts):
            self._lengths[prompt.row] = prompt.past
            if prompt.past == 0:
                leader = leaders.setdefault(prompt.new, index)
                if leader != index:
                    follows[index] = leader
        order = self._to_front(prompts, [index for index in range(len(prompts)) if index not in follows])
        shared = self._share_prefix([prompts[index] for index in leaders.values()])
        news: list[TokenIds] = []
        pasts: list[int] = []
        for prompt in (prompts[index] for index in order):
            skipped = 0 if prompt.past else shared
            news.append(prompt.new[skipped:])
            pasts.append(prompt.past + skipped)
            self._lengths[prompt.row] += len(prompt.new)
        logits = self._read_in_batches(news, pasts)
        return self._expand(prompts, order, logits, follows) if follows else (order, logits)

    def _share_prefix(self, opening: Sequence[Prompt]) -> int:
        """Read what all opening prompts begin with once, in the first one's slot, and copy it to the others."""
        if len(opening) < 2:
            return 0
        shared = common_prefix([prompt.new[:-1] for prompt in opening])  # one token stays, for the logits behind it
        if shared < _WORTH_SHARING:
            return 0
        first, *others = (self._slot_of[prompt.row] for prompt in opening)
        self._forward([opening[0].new[:shared]], [0], slots=[first])
        self._cache.copy([first] * len(others), others, shared)
        return shared

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
        return torch.cat(logits)[torch.tensor(slots, device=self._device).argsort()]

    def _expand(
        self, prompts: Sequence[Prompt], order: list[int], logits: Tensor, follows: dict[int, int]
    ) -> tuple[list[int], Tensor]:
        """Give prompts that equal another one its cache and its logits."""
        place_of = {index: place for place, index in enumerate(order)}
        order = self._to_front(prompts, range(len(prompts)))
        targets = [self._slot_of[prompts[index].row] for index in follows]
        sources = [self._slot_of[prompts[leader].row] for leader in follows.values()]
        self._cache.copy(sources, targets, max(len(prompts[index].new) for index in follows))
        for index in follows:
            self._lengths[prompts[index].row] = len(prompts[index].new)
        return order, logits[[place_of[follows.get(index, index)] for index in order]]

    # -- decode ---------------------------------------------------------------------------------------------------

    def _decode(self, prompts: Sequence[Prompt], order: list[int], logits: Tensor) -> list[Answer]:
        drawing = Drawing(prompts, self.sampling, self._stops, self._grammar, self._masks)
        answers = drawing.answers
        for step in range(max(prompt.budget for prompt in prompts)):
            drawing.draw(logits, order, step)
            going = [i for i in order if not answers[i].stopped and step + 1 < prompts[i].budget]
            if not going:
                break
            if len(going) < len(order):
                order = self._to_front(prompts, going)
            pasts = [self._lengths[prompts[i].row] for i in order]
            logits = self._forward([answers[i].ids[-1:] for i in order], pasts)
            for index in order:
                self._lengths[prompts[index].row] += 1
        return answers

    # -- slots and forwards ---------------------------------------------------------------------------------------

    def _to_front(self, prompts: Sequence[Prompt], indices: Sequence[int]) -> list[int]:
        """Bring the rows of some prompts to slots 0..n-1, moving as few as possible; the prompt index in each."""
        prompt_of = {prompts[index].row: index for index in indices}
        count = len(prompt_of)
        holes = [slot for slot in range(count) if self._row_at[slot] not in prompt_of]
        movers = [slot for slot in map(self._slot_of.__getitem__, prompt_of) if slot >= count]
        if holes:
            width = max(self._lengths[self._row_at[slot]] for slot in (*holes, *movers))
            self._cache.swap(holes, movers, width)
            for hole, mover in zip(holes, movers, strict=True):
                leaving, coming = self._row_at[hole], self._row_at[mover]
                self._row_at[hole], self._row_at[mover] = coming, leaving
                self._slot_of[coming], self._slot_of[leaving] = hole, mover
        return [prompt_of[self._row_at[slot]] for slot in range(count)]

    def _forward(
        self, news: Sequence[Sequence[int]], pasts: Sequence[int], *, slots: Sequence[int] | None = None
    ) -> Tensor:
        """Run new tokens through the model, padded on the left; logits (n, V) of each row's last one.

        ``slots`` are the cache slots of the rows; None means the first n.
        """
        count = len(news)
        lengths = [len(new) for new in news]
        longest = max(lengths)
        width = max(map(add, pasts, lengths))
        positions = torch.tensor(pasts)[:, None] + torch.arange(longest)
        valid = None
        if min(lengths) < longest:
            news = [[0] * (longest - len(new)) + list(new) for new in news]
            pads = torch.tensor([longest - length for length in lengths])[:, None]
            valid = (torch.arange(longest) >= pads).to(self._device)
            positions = (positions - pads).clamp_(min=0)
        ids = torch.tensor(news).to(self._device)
        positions = positions.to(self._device)
        if valid is None and slots is None and min(pasts) == max(pasts):
            self._cache.aim_together(count, pasts[0], width)
        else:
            rows = None if slots is None else torch.tensor(slots, device=self._device)
            self._cache.aim(positions, valid, width, slots=rows)
        mask = self._plan.masks(positions, width, self._dtype)
        if self._lean is not None:
            last = torch.arange(longest - 1, count * longest, longest, device=self._device)
            assert isinstance(mask, Tensor)  # a lean decoder has one kind of layer
            look = partial(self._cache.attend, count, mask)
            return decode_positions(self._lean, ids.view(1, -1), positions.reshape(1, -1), look, last)
        out = self._loaded.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            **self._plan.cached(self._cache),
        )
        return out.logits[:, -1]
