"""The distribution that tokens are drawn from: one function for the sampler and for the trainer.

A log-probability that the trainer recomputes is only comparable with the sampler's if temperature, top-k, top-p and the
grammar were applied to both. So both call :func:`sampling_logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from gradus.core import child_seed

__all__ = ["SamplingConfig", "chosen_logprobs", "draw", "legal_mask", "sampling_logprobs", "turn_uniforms"]

NEVER = float("-inf")


class SamplingConfig(BaseModel):
    """How a policy draws its tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, gt=0, description="Divides the logits.")
    top_k: int = Field(default=0, ge=0, description="Only the likeliest so many tokens may be drawn; 0 is off.")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Only the likeliest tokens that hold this share of the probability may be drawn; 1 is off.",
    )
    max_new_tokens: int = Field(default=64, ge=1, description="Longest answer, in tokens.")
    grammar: bool = Field(default=False, description="Only legal tokens may be drawn, if the environment names them.")
    greedy: bool = Field(
        default=False, description="Take the likeliest token; its log-prob is 0, for the distribution is one point."
    )

    @model_validator(mode="after")
    def _no_silent_knobs(self) -> SamplingConfig:
        if self.greedy and (self.temperature != 1.0 or self.top_k or self.top_p != 1.0):
            raise ValueError(
                "greedy takes the likeliest token, so temperature, top_k and top_p have no effect; leave them out or unset greedy"
            )
        return self

    def changed(self, *, temperature: float | None = None, max_new_tokens: int | None = None) -> SamplingConfig:
        """These settings with another temperature (0 is greedy) or another limit; None leaves them as they are."""
        budget = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        if temperature == 0:
            return SamplingConfig(max_new_tokens=budget, grammar=self.grammar, greedy=True)
        if temperature is None:
            return SamplingConfig(**{**self.model_dump(), "max_new_tokens": budget})
        others = self.model_dump(include={"top_k", "top_p", "grammar"})
        return SamplingConfig(**others, temperature=temperature, max_new_tokens=budget)

    def as_greedy(self) -> SamplingConfig:
        """The same budget and grammar, decoded greedily."""
        return SamplingConfig(max_new_tokens=self.max_new_tokens, grammar=self.grammar, greedy=True)


def sampling_logprobs(
    logits: Tensor, config: SamplingConfig, legal: Tensor | None = None, *, chosen: Tensor | None = None
) -> Tensor:
    """Log-probabilities of the distribution that tokens are drawn from.

    Args:
        logits: (N, V), any float type; the softmax is taken in float32 at least.
        config: temperature, then grammar, then top-k, then top-p, in that order.
        legal: (N, V) bool, true on tokens that may be drawn; None if no grammar is in force.
        chosen: (N,) ids that were drawn under this config. They stay in the support even if rounding has moved them
            across the edge of top-k or top-p since they were drawn; give it when recomputing, not when sampling.

    Returns:
        (N, V) in nats; ``-inf`` on tokens that cannot be drawn. Differentiable in ``logits``.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if config.temperature != 1.0:
        scores = scores / config.temperature
    if legal is not None:
        scores = scores.masked_fill(~legal, NEVER)
    if config.greedy:
        best = scores.argmax(-1, keepdim=True)
        return torch.full_like(scores, NEVER).scatter(-1, best, 0.0)
    if config.top_k or config.top_p < 1.0:
        scores = scores.masked_fill(_outside(scores.detach(), config, chosen), NEVER)
    return scores.log_softmax(-1)


@torch.no_grad()
def _outside(scores: Tensor, config: SamplingConfig, chosen: Tensor | None) -> Tensor:
    """(N, V) true on tokens that top-k or top-p leave out. Ties with the last one that is kept are kept."""
    outside = torch.zeros_like(scores, dtype=torch.bool)
    if 0 < config.top_k < scores.shape[-1]:
        outside = scores < scores.topk(config.top_k, dim=-1).values[..., -1:]
    if config.top_p < 1.0:
        ordered, order = scores.masked_fill(outside, NEVER).sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        before = mass.cumsum(-1) - mass  # a token is kept while the mass before it is below top_p: at least one is
        outside = outside | torch.zeros_like(outside).scatter(-1, order, before >= config.top_p)
    if chosen is not None:
        outside = outside.scatter(-1, chosen[..., None], False)
    return outside


def chosen_logprobs(logits: Tensor, ids: Tensor, config: SamplingConfig, legal: Tensor | None = None) -> Tensor:
    """(N,) log-probs of the tokens ``ids`` (N,), which were drawn under ``config``; what a trainer compares with the sampler's."""
    if not (legal is not None or config.greedy or config.top_k or config.top_p < 1.0):
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = scores / config.temperature if config.temperature != 1.0 else scores
        return -torch.nn.functional.cross_entropy(scores, ids, reduction="none")
    return sampling_logprobs(logits, config, legal, chosen=ids).gather(-1, ids[:, None]).squeeze(-1)


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token a row by inverting the cumulative distribution.

    Args:
        logprobs: (N, V) as :func:`sampling_logprobs` gives them.
        uniforms: (N,) float64 in [0, 1), one for each token drawn.

    Returns:
        (N,) ids. A token of probability 0 is never drawn, whatever the rounding.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    # Rounding may carry u * total up to total, beyond the last token that has any mass: stay below it.
    point = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point, right=True).squeeze(-1)


def turn_uniforms(key: Sequence[int | str], turn: int, count: int) -> np.ndarray:
    """(count,) float64 in [0, 1): the randomness of one turn of one episode, a function of its key and nothing else."""
    return np.random.default_rng(child_seed(*key, turn)).random(count)  # pyright: ignore[reportArgumentType]


def legal_mask(
    legal: Sequence[Sequence[int] | None], vocabulary: int, *, device: torch.device | str | None = None
) -> Tensor:
    """(N, vocabulary) bool from the ids that were legal at each of N tokens (``TurnTokens.legal``); None means all."""
    mask = torch.zeros(len(legal), vocabulary, dtype=torch.bool)
    for row, ids in enumerate(legal):
        if ids is None:
            mask[row] = True
        else:
            mask[row, list(ids)] = True
    return mask.to(device) if device is not None else mask
