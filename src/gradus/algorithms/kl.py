"""KL(policy || reference) as a term of the loss, and the entropy of a policy's distributions.

With d = log pi - log ref of a token that the policy drew, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (J. Schulman,
"Approximating KL divergence", 2020). As a loss it is the gradient that must be right: that of k3 is once it carries the policy's ratio to
the sampler, as DeepSeek-V3.2's does (arXiv 2512.02556); that of k1 has expectation zero, whatever the reference (arXiv 2510.01555).
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = -1e4  # in place of -inf, whose product with a probability of 0 is not a number; exp makes 0 of both


def kl_terms(logprobs: Tensor, reference_logprobs: Tensor, *, sampler_logprobs: Tensor | None = None) -> Tensor:
    """Returns what each sampled token adds to the KL divergence to the reference, (B, T), nats: k3 times the ratio to the sampler.

    The caller averages it as the policy loss is averaged (:func:`gradus.algorithms.losses.average`): inside the mean over a sequence for
    ``grpo`` (arXiv 2402.03300, eq. 3), over all tokens for ``dapo``.

    Args:
        logprobs, reference_logprobs: (B, T) of the sampled tokens, nats; no gradient flows into the reference.
        sampler_logprobs: (B, T); None where the tokens were drawn from the policy as it is now (ratio 1).
    """
    drawn = logprobs.detach() if sampler_logprobs is None else sampler_logprobs.detach()
    difference = logprobs - reference_logprobs.detach()
    return (logprobs - drawn).exp() * (torch.expm1(-difference) + difference)


def entropy(logprobs: Tensor) -> Tensor:
    """(...,) entropy in nats of normalized ``logprobs`` (..., V); tokens that cannot be drawn (``-inf``) count 0.

    Differentiable, also if some log-probs are ``-inf``.
    """
    safe = logprobs.clamp_min(_LEAST)
    return -(safe.exp() * safe).sum(-1)
