"""Entropy of the distributions that tokens were drawn from."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logprobs: Tensor) -> Tensor:
    """(...,) entropy in nats of normalized ``logprobs`` (..., V); tokens that cannot be drawn (``-inf``) count 0.

    Differentiable, also if some log-probs are ``-inf``.
    """
    possible = torch.isfinite(logprobs)
    safe = torch.where(possible, logprobs, 0.0)
    return -(torch.where(possible, safe.exp(), 0.0) * safe).sum(-1)
