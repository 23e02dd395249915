"""Corrections for a sampler that is not the trainer: another engine, a quantized copy, weights one step old.

All return factors for the loss and figures that say how large the mismatch is. They are for samplers that really differ;
in this process sampler and trainer agree, and a difference is a bug to mend, not a thing to weight away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from gradus.algorithms.grouping import dense_names


class Correction(Protocol):
    """(trainer_logprobs, sampler_logprobs, mask), all (B, T) -> factors (B, T), 1 off the mask, and metrics.

    ``sequences``: (B, T) integer names of the training sequence of each token, for rows that hold several; None if each row is one.
    """

    def __call__(
        self,
        trainer_logprobs: Tensor,
        sampler_logprobs: Tensor,
        mask: Tensor,
        *,
        sequences: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


def _truncated(ratio: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    return ratio.clamp(max=high), ratio > high


def _masked(ratio: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    outside = (ratio < low) | (ratio > high)
    return torch.where(outside, 0.0, ratio), outside


def _token_ratio(difference: Tensor, mask: Tensor, sequences: Tensor | None) -> Tensor:
    return difference.exp()


def _sequence_ratio(difference: Tensor, mask: Tensor, sequences: Tensor | None) -> Tensor:
    """(B, T) ratio of the whole sequence at each of its tokens, 1 off the mask."""
    if sequences is None:
        sequences = torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)
    names, place = dense_names(sequences[mask])
    sums = difference.new_zeros(names.numel()).index_add(0, place, difference[mask])
    return torch.ones_like(difference).masked_scatter(mask, sums[place].exp())


def _correction(ratio_of: _Ratio, bound: _Bound, low: float, high: float) -> Correction:
    def weights(
        trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, sequences: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        difference = torch.where(mask, trainer_logprobs.detach() - sampler_logprobs.detach(), 0.0)
        factors, corrected = bound(ratio_of(difference, mask, sequences), low, high)
        return factors, _metrics(difference.exp(), corrected, mask)

    return weights


def _metrics(ratio: Tensor, corrected: Tensor, mask: Tensor) -> dict[str, Tensor]:
    own = ratio[mask]
    if not own.numel():
        zero = ratio.new_zeros(())
        return dict.fromkeys(("mismatch_fraction", "mismatch_ratio_max", "mismatch_kl"), zero)
    return {
        "mismatch_fraction": corrected[mask].to(ratio.dtype).mean(),
        "mismatch_ratio_max": own.max(),
        "mismatch_kl": (own - 1.0 - own.log()).mean(),  # k3, of the trainer from the sampler
    }


_Ratio = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_Bound = Callable[[Tensor, float, float], tuple[Tensor, Tensor]]
CORRECTIONS: dict[str, Correction] = {
    # min(pi_trainer / pi_sampler, 2) of a token: biased where it caps, of bounded variance. Truncated importance sampling, Ionides 2008;
    # for rollout engines Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    "truncate": _correction(_token_ratio, _truncated, 0.0, 2.0),
    # The ratio of a token in [0.5, 2], else 0: the policy loss leaves the token out (KL and entropy keep it). IcePop, arXiv 2510.18855.
    "mask": _correction(_token_ratio, _masked, 0.5, 2.0),
    # The same of the whole sequence, the product over its tokens, up to 3: TRL's names, formulas and bound. Unbiased below the bound, and
    # of larger variance the longer the sequence.
    "sequence_truncate": _correction(_sequence_ratio, _truncated, 0.0, 3.0),
    "sequence_mask": _correction(_sequence_ratio, _masked, 0.0, 3.0),
}
