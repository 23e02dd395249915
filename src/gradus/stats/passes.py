"""Estimates how likely one of several attempts succeeds."""

from __future__ import annotations

from math import comb


def pass_at_k(samples: int, passed: int, k: int) -> float | None:
    """The probability that at least one of ``k`` attempts passes, from ``samples`` attempts of which ``passed`` did.

    The unbiased estimator of arXiv 2107.03374 (Chen et al.): the share of all choices of ``k`` samples that hold one that passed.
    None with fewer than ``k`` samples.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 0, 2), pass_at_k(1, 1, 2)
    (0.5, 0.0, None)
    """
    if samples < k:
        return None
    return 1.0 - comb(samples - passed, k) / comb(samples, k)
