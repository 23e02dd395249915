"""The distribution that tokens are drawn from: one function for the sampler and for the trainer.

A log-probability that the trainer recomputes is only comparable with the sampler's if temperature, top-k, top-p and the
grammar were applied to both. So both call :func:`sampling_logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradus.core import child_seed

Uniforms = NDArray[np.float64]

NEVER = float("-inf")
MANY_WORDS = 2**14  # from here on tokens are drawn in two steps: a block of words, then a word of it
_BLOCK = 512
_NUCLEUS = 1024  # of many words so many are sorted for top_p; rows that need more are sorted whole


class SamplingConfig(BaseModel):
    """The settings by which a policy draws its tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits."""
    top_k: int = Field(default=0, ge=0)
    """Only the likeliest so many tokens may be drawn; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that hold this share of the probability may be drawn; 1 is off."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Longest answer, in tokens."""
    grammar: bool = False
    """Only legal tokens may be drawn, if the environment names them."""
    constrain: bool = False
    """An answer of which a schema is asked follows it (needs the extra constrain)."""
    greedy: bool = False
    """Take the likeliest token; its log-prob is 0, for the distribution is one point."""

    @model_validator(mode="after")
    def _no_silent_knobs(self) -> SamplingConfig:
        if self.greedy and (self.temperature != 1.0 or self.truncates):
            raise ValueError(
                "greedy takes the likeliest token, so temperature, top_k and top_p have no effect; leave them out or unset greedy"
            )
        return self

    @property
    def masks(self) -> bool:
        """Says whether a grammar may leave out tokens."""
        return self.grammar or self.constrain

    @property
    def truncates(self) -> bool:
        """Says whether top-k or top-p leave out tokens."""
        return self.top_k > 0 or self.top_p < 1.0

    def changed(self, *, temperature: float | None = None, max_new_tokens: int | None = None) -> SamplingConfig:
        """These settings with another temperature (0 is greedy) or another limit; None leaves them as they are."""
        longest = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        if temperature == 0:
            return SamplingConfig(max_new_tokens=longest, grammar=self.grammar, constrain=self.constrain, greedy=True)
        changes: dict[str, object] = {"max_new_tokens": longest}
        if temperature is not None:
            changes |= {"temperature": temperature, "greedy": False}
        return SamplingConfig.model_validate(self.model_dump() | changes)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by the temperature, in float32 at least."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return scores if temperature == 1.0 else scores / temperature


def sampling_logprobs(
    logits: Tensor, config: SamplingConfig, legal: Tensor | None = None, *, drawn_ids: Tensor | None = None
) -> Tensor:
    """Log-probabilities of the distribution that tokens are drawn from.

    Args:
        logits: (N, V), any float type; the softmax is taken in float32 at least.
        config: temperature, then grammar, then top-k, then top-p, in that order.
        legal: (N, V) bool, true on tokens that may be drawn; None if no grammar is in force.
        drawn_ids: (N,) ids that were drawn under this config. They stay in the support even if rounding has moved them
            across the edge of top-k or top-p since they were drawn; give it when recomputing, not when sampling.

    Returns:
        (N, V) in nats; ``-inf`` on tokens that cannot be drawn. Differentiable in ``logits``.
    """
    scores = _scaled(logits, config.temperature)
    if legal is not None:
        scores = scores.masked_fill(~legal, NEVER)
    # The distribution is one point: probability 1 at the likeliest token.
    if config.greedy:
        best = scores.argmax(-1, keepdim=True)
        return torch.full_like(scores, NEVER).scatter(-1, best, 0.0)
    if config.truncates:
        scores = scores.masked_fill(_outside(scores.detach(), config, drawn_ids), NEVER)
    return scores.log_softmax(-1)


@torch.no_grad()
def _outside(scores: Tensor, config: SamplingConfig, drawn_ids: Tensor | None) -> Tensor:
    """(N, V) true on tokens that top-k or top-p leave out. Ties with the last one that stays in stay in."""
    outside = torch.zeros_like(scores, dtype=torch.bool)
    if 0 < config.top_k < scores.shape[-1]:
        likely = scores.topk(config.top_k, dim=-1).values
        outside = scores < likely[..., -1:]
    if config.top_p < 1.0:
        scores = scores.masked_fill(outside, NEVER)
        outside = outside | _outside_nucleus(scores, config.top_p)
    if drawn_ids is not None:
        outside = outside.scatter(-1, drawn_ids[..., None], False)
    return outside


def _outside_nucleus(scores: Tensor, top_p: float) -> Tensor:
    """(N, V) true on tokens that top-p leaves out. Of many words the likeliest are sorted, and all only if these hold too little."""
    if scores.shape[-1] < MANY_WORDS:
        return _outside_by_sorting(scores, top_p)
    likely = scores.topk(_NUCLEUS, dim=-1).values
    # The mass of all words, though only the likeliest are sorted.
    total = scores.logsumexp(-1, keepdim=True)
    mass = (likely - total).exp_().cumsum(-1)
    count = (mass < top_p).sum(-1, keepdim=True)
    last = count.clamp_(max=_NUCLEUS - 1)
    outside = scores < likely.gather(-1, last)
    flat_rows = mass[..., -1] < top_p
    if flat_rows.any():
        outside[flat_rows] = _outside_by_sorting(scores[flat_rows], top_p)
    return outside


def _outside_by_sorting(scores: Tensor, top_p: float) -> Tensor:
    ordered, order = scores.sort(dim=-1, descending=True)
    mass = ordered.softmax(-1)
    # A token stays in while this is below top_p: at least one does.
    mass_before = mass.cumsum(-1) - mass
    outside = torch.zeros_like(scores, dtype=torch.bool)
    return outside.scatter(-1, order, mass_before >= top_p)


def chosen_logprobs(logits: Tensor, ids: Tensor, config: SamplingConfig, legal: Tensor | None = None) -> Tensor:
    """(N,) log-probs of the tokens ``ids`` (N,), which were drawn under ``config``; what a trainer compares with the sampler's."""
    if legal is None and not config.greedy and not config.truncates:
        scores = _scaled(logits, config.temperature)
        return -cross_entropy(scores, ids, reduction="none")
    logprobs = sampling_logprobs(logits, config, legal, drawn_ids=ids)
    return _of_ids(logprobs, ids)


def _of_ids(values: Tensor, ids: Tensor) -> Tensor:
    """(N,) the value of each row's id, of (N, V)."""
    return values.gather(-1, ids[:, None]).squeeze(-1)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token a row by inverting the cumulative distribution.

    Args:
        logprobs: (N, V) as :func:`sampling_logprobs` gives them.
        uniforms: (N,) float64 in [0, 1), one for each token drawn.

    Returns:
        (N,) ids. A token of probability 0 is never drawn, whatever the rounding.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    # A float64 below 1 is at most 1 - 2**-53, so its product with the total is rounded to less than the total.
    points = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True).squeeze(-1)


def draw_tokens(
    logits: Tensor, uniforms: Tensor, config: SamplingConfig, legal: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token a row and say how likely it was.

    Args:
        logits: (N, V), any float type.
        uniforms: (N,) float64 in [0, 1), one for each token drawn.
        config, legal: as for :func:`sampling_logprobs`.

    Returns:
        (N,) ids and (N,) their log-probs in nats.
    """
    # No sums over many words for one that is certain.
    if config.greedy:
        allowed = logits
        if legal is not None:
            allowed = logits.masked_fill(~legal, NEVER)
        ids = allowed.argmax(-1)
        largest = _of_ids(logits, ids)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        certain = torch.zeros(ids.shape, dtype=dtype, device=ids.device)
        # The caller refuses what is not finite.
        return ids, certain.where(largest.isfinite(), torch.nan)
    if legal is None and not config.truncates and logits.shape[-1] >= MANY_WORDS:
        return _draw_by_blocks(_scaled(logits, config.temperature), uniforms)
    logprobs = sampling_logprobs(logits, config, legal)
    last = logits.shape[-1] - 1
    ids = draw(logprobs, uniforms).clamp_(max=last)
    return ids, _of_ids(logprobs, ids)


def _draw_by_blocks(scores: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`draw` from a softmax, with few passes over many words: sums of blocks first, then the words of one block."""
    count = scores.shape[-1]
    largest = scores.amax(-1, keepdim=True)
    # In the dtype of the scores; only the sums of blocks are added in float64.
    mass = (scores - largest).exp_()
    in_blocks = count // _BLOCK * _BLOCK
    blocks = mass[:, :in_blocks].view(len(mass), -1, _BLOCK)
    sums = blocks.sum(-1)
    if in_blocks < count:
        rest = mass[:, in_blocks:].sum(-1, keepdim=True)
        sums = torch.cat([sums, rest], dim=-1)
    cumulative = sums.double().cumsum(-1)
    total = cumulative[:, -1:]
    point = uniforms[:, None] * total
    last_block = sums.shape[-1] - 1
    block = torch.searchsorted(cumulative, point, right=True).clamp_(max=last_block)
    words = block * _BLOCK + torch.arange(_BLOCK, device=scores.device)
    inside = mass.gather(-1, words.clamp(max=count - 1)).double()
    inside = inside.masked_fill_(words >= count, 0.0).cumsum(-1)
    before = cumulative - sums.double()
    point = point - before.gather(-1, block)
    # The sums of blocks are rounded, so the rest may lie beyond the block's last word that has any mass: stay below it.
    last = inside[:, -1:]
    below = torch.nextafter(last, torch.zeros_like(last))
    point = torch.minimum(point.clamp_(min=0.0), below)
    word = torch.searchsorted(inside, point, right=True)
    ids = (block * _BLOCK + word).clamp_(max=count - 1)
    normalizer = total.log().to(scores.dtype)
    logprobs = scores.gather(-1, ids) - largest - normalizer
    return ids.squeeze(-1), logprobs.squeeze(-1)


def turn_uniforms(key: Sequence[int | str], turn: int, count: int) -> Uniforms:
    """(count,) float64 in [0, 1): the randomness of one turn of one episode, a function of its key and nothing else."""
    return np.random.default_rng(child_seed(*key, turn)).random(count)  # pyright: ignore[reportArgumentType]


def legal_mask(legal: Sequence[int], vocabulary: int, *, device: torch.device | None = None) -> Tensor:
    """(vocabulary,) bool, true on the ids that are legal."""
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[list(legal)] = True
    return mask.to(device)
