"""Estimates of KL(policy || reference) from sampled tokens, as a term of the loss.

With d = log pi - log ref of a token that the policy drew, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (J. Schulman,
"Approximating KL divergence", 2020). As a *reward* take k1: unbiased, and the policy gradient does the rest. As a *loss* it
is the gradient that must be right: that of k2 is, on policy; that of k3 is once it carries the policy's ratio to the
sampler; that of k1 has expectation zero, whatever the reference, so it is refused (arXiv 2510.01555; the weighted k3 is
DeepSeek-V3.2's, arXiv 2512.02556).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

KlKind = Literal["k1", "k2", "k3"]


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return 0.5 * difference**2


def _k3(difference: Tensor) -> Tensor:
    return torch.expm1(-difference) + difference


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3}
"""Estimator of the KL divergence from log pi - log ref, any shape, nats."""


def kl_terms(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    *,
    kind: KlKind = "k2",
    sampler_logprobs: Tensor | None = None,
) -> Tensor:
    """Returns what each sampled token adds to the KL divergence to the reference, (B, T), nats, as a term of the loss.

    The caller averages it as the policy loss is averaged (:func:`gradus.algorithms.losses.average`): inside the mean over a sequence for
    ``grpo`` (arXiv 2402.03300, eq. 3), over all tokens for ``dapo``.

    Args:
        logprobs, reference_logprobs: (B, T) of the sampled tokens, nats; no gradient flows into the reference.
        kind: ``k2``, or ``k3`` weighted with the ratio to the sampler.
        sampler_logprobs: (B, T); None where the tokens were drawn from the policy as it is now (ratio 1).

    Raises:
        ValueError: ``k1``, whose gradient is zero in expectation.
    """
    if kind == "k1":
        raise ValueError(
            "k1 as a loss has zero gradient in expectation, so it would hold nothing back; use k2 or k3 as a loss, "
            "or k1 as a penalty in the reward"
        )
    if kind not in KL_ESTIMATORS:
        raise ValueError(f"kl must be k2 or k3 as a loss, got {kind!r}")
    drawn = logprobs.detach() if sampler_logprobs is None else sampler_logprobs.detach()
    ratio = (logprobs - drawn).exp()
    # k2's own gradient is already the policy gradient of the divergence, so its ratio is a plain weight.
    weight = ratio if kind == "k3" else ratio.detach()
    return weight * KL_ESTIMATORS[kind](logprobs - reference_logprobs.detach())
