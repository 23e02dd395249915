"""Entropy of the distributions that tokens were drawn from."""

from __future__ import annotations

from torch import Tensor

_LEAST = -1e4  # in place of -inf, whose product with a probability of 0 is not a number; exp makes 0 of both


def entropy(logprobs: Tensor) -> Tensor:
    """(...,) entropy in nats of normalized ``logprobs`` (..., V); tokens that cannot be drawn (``-inf``) count 0.

    Differentiable, also if some log-probs are ``-inf``.
    """
    safe = logprobs.clamp_min(_LEAST)
    return -(safe.exp() * safe).sum(-1)
