"""Corrections for a sampler that is not the trainer: another engine, or a quantized copy.

All return factors for the loss and figures that say how large the mismatch is. They are for samplers that really differ;
in this process sampler and trainer agree, and a difference is a bug to mend, not a thing to weight away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.algorithms.grouping import sequence_index

Correction = Callable[..., tuple[Tensor, dict[str, Tensor]]]


def _correction(low: float, high: float, *, masks: bool, by_sequence: bool = False) -> Correction:
    """Ratios of trainer to sampler outside of ``low`` to ``high`` become 0 if it ``masks``, else ``high`` at most."""

    def weights(
        trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, sequences: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Factors (B, T), 1 off the mask, and metrics, of (B, T) each.

        ``sequences``: integer names of the training sequence of each token, for rows that hold several; None if each row is one.
        """
        difference = trainer_logprobs.detach() - sampler_logprobs.detach()
        difference = torch.where(mask, difference, 0.0)
        token_ratio = difference.exp()
        ratio = token_ratio
        if by_sequence:
            ratio = _sequence_ratio(difference, mask, sequences)
        outside = (ratio < low) | (ratio > high)
        factors = ratio.clamp(max=high)
        if masks:
            factors = torch.where(outside, 0.0, ratio)
        return factors, _metrics(token_ratio, outside, mask)

    return weights


def _sequence_ratio(difference: Tensor, mask: Tensor, sequences: Tensor | None) -> Tensor:
    """(B, T) ratio of the whole sequence at each of its tokens, 1 off the mask."""
    count, sequence = sequence_index(sequences, mask)
    sums = difference.new_zeros(count).index_add(0, sequence, difference[mask])
    ones = torch.ones_like(difference)
    return ones.masked_scatter(mask, sums[sequence].exp())


def _metrics(ratio: Tensor, corrected: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Share of the sampled tokens that are corrected, their largest ratio, and the divergence of the trainer from the sampler (k3)."""
    sampled = ratio[mask]
    zero = ratio.new_zeros(())
    if not sampled.numel():
        return {"mismatch_fraction": zero, "mismatch_ratio_max": zero, "mismatch_kl": zero}
    k3 = sampled - 1.0 - sampled.log()
    return {
        "mismatch_fraction": corrected[mask].to(ratio.dtype).mean(),
        "mismatch_ratio_max": sampled.max(),
        "mismatch_kl": k3.mean(),
    }


CORRECTIONS: dict[str, Correction] = {
    # min(pi_trainer / pi_sampler, 2) of a token: biased where it caps, of bounded variance. Truncated importance sampling, Ionides 2008;
    # for rollout engines Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    "truncate": _correction(0.0, 2.0, masks=False),
    # The ratio of a token in [0.5, 2], else 0: the policy loss leaves the token out (KL and entropy keep it). IcePop, arXiv 2510.18855.
    "mask": _correction(0.5, 2.0, masks=True),
    # The same of the whole sequence, the product over its tokens, up to 3: TRL's names, formulas and bound. Unbiased below the bound, and
    # of larger variance the longer the sequence.
    "sequence_truncate": _correction(0.0, 3.0, masks=False, by_sequence=True),
    "sequence_mask": _correction(0.0, 3.0, masks=True, by_sequence=True),
}
