"""Policy losses: arrays in, loss and metrics out.

All take the same arguments (see :class:`PolicyLoss`), so that they can be chosen by name from ``LOSSES``. Denominators come
from the caller, who knows the whole step: the sum of the losses of its microbatches is then the loss of the step, however
it was cut. Minimizing the loss maximizes the objective of the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gradus.algorithms.grouping import sequence_index


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """``loss``: a number with a gradient. ``metrics``: numbers without one; :func:`combine_metrics` adds up microbatches."""

    loss: Tensor
    metrics: dict[str, Tensor]


class PolicyLoss(Protocol):
    """The tensors that every loss takes. B rows, T positions.

    Args:
        logprobs: (B, T) of the tokens at hand under the policy being trained, in nats.
        sampler_logprobs: (B, T) of the same tokens under the policy that drew them (or, with ``weights``, under the
            trainer before its first update of the step). No gradient flows into it.
        advantages: (B, T).
        mask: (B, T) bool, true on sampled tokens, the stop token included. What stands elsewhere is never read.
        n_tokens: action tokens in the whole step.
        n_sequences: episodes in the whole step; one that restarts is several training sequences.
        clip_low, clip_high: the ratio may move within [1 - clip_low, 1 + clip_high].
        max_tokens: the constant of ``dr_grpo``: the token budget of an episode. Other losses ignore it.
        weights: (B, T) factors without gradient: they correct for a sampler that is not the trainer
            (:mod:`gradus.algorithms.corrections`), and for a mean over sequences hold a sequence's share of its episode; None for 1.
        sequences: (B, T) integer names of the training sequence of each token, for rows that hold several (a tree or a
            packed row); None if a row is one sequence. A sequence must not be split over microbatches, except for losses
            that average over tokens alone.
    """

    def __call__(
        self,
        logprobs: Tensor,
        sampler_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        n_tokens: float,
        n_sequences: float,
        clip_low: float,
        clip_high: float,
        max_tokens: float | None = None,
        weights: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> LossResult: ...


@dataclass(frozen=True, kw_only=True)
class _Tokens:
    """The M action tokens of a batch, flat; ``sequence`` (M,) in 0..n-1, ``length`` (n,) tokens of each, ``factors`` (M,) their weights."""

    logprobs: Tensor
    log_ratio: Tensor
    advantages: Tensor
    factors: Tensor
    sequence: Tensor
    length: Tensor
    n_tokens: float
    n_sequences: float
    clip_low: float = 0.0
    clip_high: float = 0.0
    max_tokens: float | None = None

    def sequence_mean(self, values: Tensor) -> Tensor:
        """(n,) mean of ``values`` (M,) over each sequence."""
        return values.new_zeros(self.length.numel()).index_add(0, self.sequence, values) / self.length


# (M,) each: what a token is worth, its ratio, and whether the clip took its gradient.
_Worth = tuple[Tensor, Tensor, Tensor]
_Objective = Callable[[_Tokens], _Worth]
Average = Literal["tokens", "sequences", "budget"]
"""How a loss averages its tokens: over all tokens of the step, over each sequence and then over sequences, or over a constant budget."""


def _clipped(tokens: _Tokens) -> _Worth:
    """min(rho A, clip(rho) A)."""
    return _clip(tokens, tokens.log_ratio.exp())


def _bounded(tokens: _Tokens, ratio: Tensor) -> Tensor:
    """The ratio within the clip, (M,)."""
    return ratio.clamp(1.0 - tokens.clip_low, 1.0 + tokens.clip_high)


def _clip(tokens: _Tokens, ratio: Tensor) -> _Worth:
    bounded = _bounded(tokens, ratio)
    unclipped = ratio * tokens.advantages
    clipped = bounded * tokens.advantages
    return torch.minimum(unclipped, clipped), ratio, clipped < unclipped


def _sequence_clipped(tokens: _Tokens) -> _Worth:
    """GSPO: the ratio is the geometric mean over the sequence, carried by each token's own gradient (GSPO-token)."""
    mean = tokens.sequence_mean(tokens.log_ratio).detach()
    # The value is the sequence's, the gradient the token's own.
    log_ratio = mean[tokens.sequence] + tokens.logprobs - tokens.logprobs.detach()
    return _clip(tokens, log_ratio.exp())


def _weighted(tokens: _Tokens) -> _Worth:
    """CISPO: the clipped ratio is a weight without gradient, so that no token loses its own."""
    ratio = tokens.log_ratio.detach().exp()
    bounded = _bounded(tokens, ratio)
    return bounded * tokens.advantages * tokens.logprobs, ratio, bounded != ratio


def _reinforce(tokens: _Tokens) -> _Worth:
    """rho A log pi with rho as a weight: REINFORCE, exact off policy too, unclipped."""
    ratio = tokens.log_ratio.detach().exp()
    return ratio * tokens.advantages * tokens.logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool)


def _averaged(tokens: _Tokens, values: Tensor, over: Average) -> Tensor:
    """``values`` (M,), times their factors, averaged; a number."""
    values = values * tokens.factors
    if over == "sequences":
        return tokens.sequence_mean(values).sum() / tokens.n_sequences
    if over == "budget":
        if tokens.max_tokens is None:
            raise ValueError("dr_grpo divides by a constant; give max_tokens, the token budget of one episode")
        return values.sum() / (tokens.n_sequences * tokens.max_tokens)
    return values.sum() / tokens.n_tokens


def average(
    values: Tensor, over: Average, *, weights: Tensor | None = None, sequences: Tensor | None = None, **sizes: Any
) -> Tensor:
    """Averages a term of the loss, (B, T) sampled tokens, as the policy loss of the same name is averaged; a number.

    ``sizes`` are ``n_tokens``, ``n_sequences`` and ``max_tokens`` as in :class:`PolicyLoss`; ``weights`` hold a sequence's share of its
    episode.
    """
    on = torch.ones_like(values, dtype=torch.bool)
    # Only what stands in the place of log-probs is averaged; ratio and advantages are not read.
    tokens = _flatten(values, values, values, on, weights, sequences, **sizes)
    return _averaged(tokens, tokens.logprobs, over)


def _flatten(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | None,
    sequences: Tensor | None,
    **sizes: Any,
) -> _Tokens:
    """The action tokens of a batch; positions off the mask are gone, so they get no gradient at all."""
    shapes = [tuple(x.shape) for x in (logprobs, sampler_logprobs, advantages, mask)]
    if len(set(shapes)) > 1 or mask.dtype != torch.bool:
        raise ValueError(
            "logprobs, sampler_logprobs, advantages and mask must have one shape, and mask must be bool; "
            f"got {shapes} and {mask.dtype}"
        )
    count, sequence = sequence_index(sequences, mask)
    length = torch.bincount(sequence, minlength=count)
    # Selected, not multiplied by 0: NaN or infinity off the mask would stay.
    sampled = logprobs[mask]
    factors = torch.ones_like(sampled)
    if weights is not None:
        factors = weights[mask].detach().to(sampled)
    return _Tokens(
        logprobs=sampled,
        log_ratio=sampled - sampler_logprobs[mask].detach(),
        advantages=advantages[mask].detach().to(sampled),
        factors=factors,
        sequence=sequence,
        length=length.to(sampled.dtype),
        **sizes,
    )


def _metrics(tokens: _Tokens, ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    """Shares of the step (to be added up) and extremes (``*_max``) over this batch's tokens."""
    log_ratio = tokens.log_ratio.detach()
    k3 = log_ratio.exp() - 1.0 - log_ratio  # of the policy from the sampler
    largest = log_ratio.new_zeros(())
    if ratio.numel():
        largest = ratio.detach().max()
    return {
        "clip_fraction": clipped.sum() / tokens.n_tokens,
        "ratio_max": largest,
        "approx_kl": k3.sum() / tokens.n_tokens,
    }


def _make(objective: _Objective, over: Average, doc: str) -> PolicyLoss:
    """A loss out of what a token is worth and how tokens are averaged."""

    def loss(
        logprobs: Tensor,
        sampler_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        weights: Tensor | None = None,
        sequences: Tensor | None = None,
        **sizes: Any,
    ) -> LossResult:
        tokens = _flatten(logprobs, sampler_logprobs, advantages, mask, weights, sequences, **sizes)
        values, ratio, clipped = objective(tokens)
        loss = -_averaged(tokens, values, over)
        return LossResult(loss=loss, metrics=_metrics(tokens, ratio, clipped))

    loss.__doc__ = doc
    return loss


LOSSES: dict[str, PolicyLoss] = {
    "grpo": _make(
        _clipped,
        "sequences",
        "Clipped ratio, mean over tokens, then over sequences. GRPO, arXiv 2402.03300, eq. 3; its KL term is averaged in "
        "the same way (gradus.algorithms.kl). A long sequence's tokens weigh less than a short one's.",
    ),
    "dr_grpo": _make(
        _clipped,
        "budget",
        "Clipped ratio, sum over tokens divided by sequences x max_tokens. Dr. GRPO, arXiv 2503.20783; for advantages "
        "without a scale.",
    ),
    "dapo": _make(
        _clipped,
        "tokens",
        "Ratio clipped wider above than below, sum over tokens divided by all tokens of the step. DAPO, arXiv 2503.14476, "
        "eq. 8; dynamic sampling is the caller's, overlong shaping is the reward `length`.",
    ),
    "gspo": _make(
        _sequence_clipped,
        "sequences",
        "The ratio of a sequence is the geometric mean of its tokens' ratios. GSPO, arXiv 2507.18071, in its token form "
        "(eq. 14), which equals the sequence form where a sequence has one advantage and allows one per turn.",
    ),
    "cispo": _make(
        _weighted,
        "tokens",
        "REINFORCE with the clipped ratio as a weight. CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4. With clip_low 1 it is "
        "clipped above only, as there.",
    ),
    "rloo": _make(
        _reinforce,
        "tokens",
        "REINFORCE, for leave-one-out advantages. RLOO, arXiv 2402.14740; differs in that the ratio weighs each token "
        "(exact when several updates are made per batch) and the sum is divided by tokens, a constant of the step.",
    ),
}
"""Every policy loss by the name of the algorithm that it is from; :mod:`gradus.algorithms.registry` says who uses which."""


def combine_metrics(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Add up the metrics of a step's microbatches; of ``*_max`` take the largest."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            number = float(value)
            if name not in total:
                total[name] = number
            elif name.endswith("_max"):
                total[name] = max(total[name], number)
            else:
                total[name] += number
    return total
