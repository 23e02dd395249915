"""KL(policy || reference) as a term of the loss, and the entropy of a policy's distributions.

With d = log pi - log ref of a token that the policy drew, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (J. Schulman,
"Approximating KL divergence", 2020). As a *reward* take k1: unbiased, and the policy gradient does the rest. As a *loss* it is the gradient
that must be right: that of k2 is, on policy; that of k3 is once it carries the policy's ratio to the sampler, as DeepSeek-V3.2's does (arXiv
2512.02556); that of k1 has expectation zero, whatever the reference, so it is refused (arXiv 2510.01555).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

KlKind = Literal["k2", "k3"]
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference: difference,
    "k2": lambda difference: 0.5 * difference**2,
    "k3": lambda difference: torch.expm1(-difference) + difference,
}
"""Estimator of the KL divergence from log pi - log ref, any shape, nats."""
_LEAST = -1e4  # in place of -inf, whose product with a probability of 0 is not a number; exp makes 0 of both


def kl_terms(
    logprobs: Tensor, reference_logprobs: Tensor, *, kind: KlKind = "k3", sampler_logprobs: Tensor | None = None
) -> Tensor:
    """Returns what each sampled token adds to the KL divergence to the reference, (B, T), nats, as a term of the loss.

    The caller averages it as the policy loss is averaged (:func:`gradus.algorithms.losses.average`): inside the mean over a sequence for
    ``grpo`` (arXiv 2402.03300, eq. 3), over all tokens for ``dapo``.

    Args:
        logprobs, reference_logprobs: (B, T) of the sampled tokens, nats; no gradient flows into the reference.
        kind: the estimate, times the ratio to the sampler.
        sampler_logprobs: (B, T); None where the tokens were drawn from the policy as it is now (ratio 1).

    Raises:
        ValueError: any other kind; of ``k1`` the gradient is zero in expectation.
    """
    if kind not in ("k2", "k3"):
        raise ValueError(f"kl must be k2 or k3 as a loss, got {kind!r}; k1 is a penalty in the reward")
    drawn = logprobs.detach() if sampler_logprobs is None else sampler_logprobs.detach()
    ratio = (logprobs - drawn).exp()
    # k2's own gradient is already the policy gradient of the divergence, so its ratio is a plain weight.
    weight = ratio if kind == "k3" else ratio.detach()
    return weight * KL_ESTIMATORS[kind](logprobs - reference_logprobs.detach())


def entropy(logprobs: Tensor) -> Tensor:
    """(...,) entropy in nats of normalized ``logprobs`` (..., V); tokens that cannot be drawn (``-inf``) count 0.

    Differentiable, also if some log-probs are ``-inf``.
    """
    safe = logprobs.clamp_min(_LEAST)
    return -(safe.exp() * safe).sum(-1)
