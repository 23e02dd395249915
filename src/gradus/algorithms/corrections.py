"""Corrections for a sampler that is not the trainer: another engine, a quantized copy, weights one step old.

Both return factors for the loss and figures that say how large the mismatch is. They are for samplers that really differ;
in this process sampler and trainer agree, and a difference is a bug to mend, not a thing to weight away.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Correction(Protocol):
    """(trainer_logprobs, sampler_logprobs, mask), all (B, T) -> factors (B, T), 1 off the mask, and metrics."""

    def __call__(
        self, trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


def truncated_weights(
    trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, cap: float = 2.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Importance weights min(pi_trainer / pi_sampler, cap), token by token.

    Biased where it caps, of bounded variance. Source: truncated importance sampling, Ionides 2008; for rollout engines,
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    """
    ratio = _ratio(trainer_logprobs, sampler_logprobs, mask)
    return ratio.clamp(max=cap), _metrics(ratio, ratio > cap, mask)


def masked_weights(
    trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 2.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Importance weights where they lie in [low, high], and 0 for tokens outside: the policy loss leaves them out (KL and entropy keep them).

    Source: IcePop, in the report on Ring-1T ("Every step evolves"), arXiv 2510.18855.
    """
    ratio = _ratio(trainer_logprobs, sampler_logprobs, mask)
    outside = (ratio < low) | (ratio > high)
    return torch.where(outside, 0.0, ratio), _metrics(ratio, outside, mask)


def _ratio(trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> Tensor:
    difference = trainer_logprobs.detach() - sampler_logprobs.detach()
    return torch.where(mask, difference, 0.0).exp()


def _metrics(ratio: Tensor, corrected: Tensor, mask: Tensor) -> dict[str, Tensor]:
    own = ratio[mask]
    if not own.numel():
        zero = ratio.new_zeros(())
        return dict.fromkeys(("mismatch_fraction", "mismatch_ratio_mean", "mismatch_ratio_max", "mismatch_kl"), zero)
    return {
        "mismatch_fraction": corrected[mask].to(ratio.dtype).mean(),
        "mismatch_ratio_mean": own.mean(),
        "mismatch_ratio_max": own.max(),
        "mismatch_kl": (own - 1.0 - own.log()).mean(),  # k3, of the trainer from the sampler
    }


CORRECTIONS: dict[str, Correction] = {"truncate": truncated_weights, "mask": masked_weights}
