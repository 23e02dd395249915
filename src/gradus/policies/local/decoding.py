"""One batch of rows: prefill what is new, then decode all answers at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gradus.policies.local.grammar import WordGrammar
from gradus.policies.local.kv_cache import MaskPlan, RaggedCache
from gradus.policies.local.llama_forward import causal_model, decode_positions, has_lean_decoder
from gradus.policies.local.loading import LoadedModel, evaluating
from gradus.policies.local.sampling import SamplingConfig, draw_tokens, legal_mask

_WORTH_SHARING = 4  # tokens of a common prefix below which one forward more costs more than it saves
_PADDING = 1.5  # a prefill that would compute this many times its tokens is cut into batches of similar length
_MASK_ENTRIES = 2**26  # rows x new tokens x positions of one forward; a mask of that many takes 256 MiB in float32
_FIRST_CAPACITY = 256  # positions a row; doubled when they are used up


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The tokens that one row reads before it answers.

    ``row``: its index in the batch. ``past``: tokens of it that the cache holds, 0 at a restart. ``new``: the ids to read.
    ``uniforms``: one number in [0, 1) per token that may be sampled. ``budget``: how many that are, at least 1.
    """

    row: int
    past: int
    new: tuple[int, ...]
    uniforms: np.ndarray
    budget: int

    @property
    def end(self) -> int:
        """Tokens that the row has at most behind its answer."""
        return self.past + len(self.new) + self.budget


@dataclass
class Answer:
    """The sampled answer to one prompt; ``legal`` holds the legal ids of each token if a grammar was in force."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    legal: list[tuple[int, ...]] | None = None
    stopped: bool = False


class Drawing:
    """Draws the answers to one batch of prompts, a token of some of them at a time.

    ``masks``: what is legal in the states of a grammar, as far as it is known.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        stops: frozenset[int],
        grammar: WordGrammar | None,
        masks: dict[Hashable, Tensor],
    ) -> None:
        self.answers = [Answer(legal=[] if grammar else None) for _ in prompts]
        self._uniforms = torch.from_numpy(np.stack([prompt.uniforms for prompt in prompts]))
        self._states = [grammar.begin() for _ in prompts] if grammar else []
        self._sampling, self._stops, self._grammar, self._masks = sampling, stops, grammar, masks

    def draw(self, logits: Tensor, order: Sequence[int], step: int) -> Tensor:
        """Draw a token (n,) of each of the prompts ``order`` from logits (n, V). An answer that has ended stays as it is."""
        uniforms = self._uniforms[order, step].to(logits.device)
        drawn, logprobs = draw_tokens(logits, uniforms, self._sampling, self._legal(logits, order))
        for index, token, logprob in zip(order, drawn.tolist(), logprobs.tolist(), strict=True):
            answer = self.answers[index]
            if answer.stopped:
                continue
            answer.ids.append(token)
            answer.logprobs.append(logprob)
            answer.stopped = token in self._stops
            if self._grammar is not None and answer.legal is not None:
                answer.legal.append(self._grammar.legal(self._states[index]))
                if not answer.stopped:
                    self._states[index] = self._grammar.advance(self._states[index], token)
        return drawn

    def _legal(self, logits: Tensor, order: Sequence[int]) -> Tensor | None:
        """(n, V) masks of the prompts' states; each state's mask is made once."""
        if self._grammar is None:
            return None
        states = [self._states[index] for index in order]
        for state in set(states).difference(self._masks):
            self._masks[state] = legal_mask([self._grammar.legal(state)], logits.shape[-1], device=logits.device)[0]
        return torch.stack([self._masks[state] for state in states])


def _similar(lengths: Sequence[int], past: int) -> list[list[int]]:
    """Cut rows into batches that waste little on padding and whose attention masks stay small, shortest rows first."""

    def fits(count: int, longest: int, total: int) -> bool:
        return longest * count <= _PADDING * total and count * longest * (past + longest) <= _MASK_ENTRIES

    if fits(len(lengths), max(lengths), sum(lengths)):
        return [list(range(len(lengths)))]
    batches: list[list[int]] = []
    total = 0
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
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
        known = has_lean_decoder(causal) and plan.window is None
        lean = known and causal.config._attn_implementation == "sdpa"
        self._lean = causal if lean else None
        self._cache = RaggedCache(rows, min(_FIRST_CAPACITY, loaded.context or _FIRST_CAPACITY))
        self._slot_of, self._row_at = list(range(rows)), list(range(rows))
        self._lengths = [0] * rows  # tokens of each row that the cache holds
        self._stops = loaded.renderer.stop_ids
        self._masks: dict[Hashable, Tensor] = {}

    def answer(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Read all prompts and sample an answer to each; the last token of an answer is not in the cache yet."""
        self._cache.expected = max(prompt.end for prompt in prompts)
        with evaluating(self._loaded):
            order, logits = self._prefill(prompts)
            return self._decode(prompts, order, logits)

    # -- prefill --------------------------------------------------------------------------------------------------

    def _prefill(self, prompts: Sequence[Prompt]) -> tuple[list[int], Tensor]:
        """Read every prompt. Returns the prompt index in each slot and the logits (n, V) in that order."""
        leaders: dict[tuple[int, ...], int] = {}
        follows: dict[int, int] = {}  # prompts that equal an earlier one from their first token on
        for index, prompt in enumerate(prompts):
            first = leaders.setdefault(prompt.new, index) if prompt.past == 0 else index
            if first != index:
                follows[index] = first
        taking_part = [index for index in range(len(prompts)) if index not in follows]
        for prompt in prompts:
            self._lengths[prompt.row] = prompt.past
        order = self._to_front(prompts, taking_part)
        pasts = [prompts[i].past for i in order]
        shared = self._share_prefix(prompts, list(leaders.values()))
        pasts = [shared if prompts[i].past == 0 else past for i, past in zip(order, pasts, strict=True)]
        news = [prompts[i].new[shared:] if prompts[i].past == 0 else prompts[i].new for i in order]
        logits = self._read_in_batches(news, pasts)
        for index in taking_part:
            self._lengths[prompts[index].row] += len(prompts[index].new)
        if follows:
            order, logits = self._expand(prompts, order, logits, follows)
        return order, logits

    def _share_prefix(self, prompts: Sequence[Prompt], leaders: list[int]) -> int:
        """Read what all opening prompts begin with once, in the first one's slot, and copy it to the others."""
        if len(leaders) < 2:
            return 0
        opening = [prompts[i].new for i in leaders]
        low, high = min(opening), max(opening)  # what the extremes share, all share, and none is shorter
        shared = 0
        while shared < min(len(low), len(high)) - 1 and low[shared] == high[shared]:  # one stays, for the logits behind
            shared += 1
        if shared < _WORTH_SHARING:
            return 0
        slots = [self._slot_of[prompts[i].row] for i in leaders]
        self._forward([opening[0][:shared]], [0], slots=slots[:1])
        self._cache.copy(slots[:1] * (len(slots) - 1), slots[1:], shared)
        return shared

    def _read_in_batches(self, news: Sequence[Sequence[int]], pasts: Sequence[int]) -> Tensor:
        """One forward if lengths are alike, else one for each batch of similar lengths. Logits (n, V) in slot order."""
        batches = _similar([len(new) for new in news], max(pasts))
        if len(batches) == 1:
            return self._forward(news, pasts)
        parts = [self._forward([news[s] for s in slots], [pasts[s] for s in slots], slots=slots) for slots in batches]
        back = torch.empty(len(news), dtype=torch.long)
        back[[slot for slots in batches for slot in slots]] = torch.arange(len(news))
        return torch.cat(parts)[back.to(self._device)]

    def _expand(
        self, prompts: Sequence[Prompt], order: list[int], logits: Tensor, follows: dict[int, int]
    ) -> tuple[list[int], Tensor]:
        """Give prompts that equal another one its cache and its logits."""
        read = {index: place for place, index in enumerate(order)}
        order = self._to_front(prompts, range(len(prompts)))
        targets = [slot for slot, index in enumerate(order) if index in follows]
        sources = [self._slot_of[prompts[follows[order[slot]]].row] for slot in targets]
        self._cache.copy(sources, targets, max(len(prompts[order[slot]].new) for slot in targets))
        for slot in targets:
            self._lengths[self._row_at[slot]] = len(prompts[order[slot]].new)
        return order, logits[[read[follows.get(index, index)] for index in order]]

    # -- decode ---------------------------------------------------------------------------------------------------

    def _decode(self, prompts: Sequence[Prompt], order: list[int], logits: Tensor) -> list[Answer]:
        drawing = Drawing(prompts, self.sampling, self._stops, self._grammar, self._masks)
        for step in range(max(prompt.budget for prompt in prompts)):
            drawing.draw(logits, order, step)
            going = [i for i in order if not drawing.answers[i].stopped and step + 1 < prompts[i].budget]
            if not going:
                break
            order = self._to_front(prompts, going) if len(going) < len(order) else order
            pasts = [self._lengths[prompts[i].row] for i in order]
            logits = self._forward([drawing.answers[i].ids[-1:] for i in order], pasts)
            for index in order:
                self._lengths[prompts[index].row] += 1
        return drawing.answers

    # -- slots and forwards ---------------------------------------------------------------------------------------

    def _to_front(self, prompts: Sequence[Prompt], chosen: Sequence[int]) -> list[int]:
        """Bring the rows of the chosen prompts to slots 0..n-1, moving as few as possible; the prompt index in each."""
        prompt_of = {prompts[index].row: index for index in chosen}
        count = len(chosen)
        holes = [slot for slot in range(count) if self._row_at[slot] not in prompt_of]
        movers = [slot for row in prompt_of if (slot := self._slot_of[row]) >= count]
        if holes:
            self._cache.swap(holes, movers, max(self._lengths[self._row_at[slot]] for slot in (*holes, *movers)))
            for a, b in zip(holes, movers, strict=True):
                self._row_at[a], self._row_at[b] = self._row_at[b], self._row_at[a]
                self._slot_of[self._row_at[a]], self._slot_of[self._row_at[b]] = a, b
        return [prompt_of[self._row_at[slot]] for slot in range(count)]

    def _forward(
        self, news: Sequence[Sequence[int]], pasts: Sequence[int], *, slots: Sequence[int] | None = None
    ) -> Tensor:
        """Run new tokens through the model, padded on the left; logits (n, V) of each row's last one.

        ``slots`` are the cache slots of the rows; None means the first n.
        """
        count, longest = len(news), max(map(len, news))
        width = max(past + len(new) for past, new in zip(pasts, news, strict=True))
        where = None if slots is None else torch.tensor(slots, device=self._device)
        if min(map(len, news)) == longest:
            ids = torch.tensor([list(new) for new in news])
            positions = torch.tensor(pasts)[:, None] + torch.arange(longest)
            valid = None
        else:
            ids = torch.tensor([[0] * (longest - len(new)) + list(new) for new in news])
            pads = torch.tensor([longest - len(new) for new in news])[:, None]
            positions = torch.tensor(pasts)[:, None] + torch.arange(longest) - pads
            valid = (torch.arange(longest) >= pads).to(self._device)
        positions = positions.clamp_(min=0).to(self._device)
        if valid is None and where is None and min(pasts) == max(pasts):
            self._cache.aim_together(count, pasts[0], width)
        else:
            self._cache.aim(positions, valid, width, slots=where)
        ids, mask = ids.to(self._device), self._plan.masks(positions, width, self._dtype)
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
