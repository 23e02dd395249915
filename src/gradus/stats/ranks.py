"""Rank correlation, over everything and within groups."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gradus.stats.clusters import Labels, Values
from gradus.stats.distributions import Array


def spearman(x: Values, y: Values) -> float | None:
    """Spearman's rank correlation; ties share their mean rank; None if either does not vary or fewer than two pairs are left.

    >>> spearman([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
    0.8
    """
    return spearman_within(x, y, [0] * len(x))


def spearman_within(x: Values, y: Values, groups: Labels) -> float | None:
    """Rank correlation inside groups: ranks are taken within each group, centered there, and correlated over all.

    Differences between groups cannot make or hide it: a reward that only knows which policy acted correlates 0 within.
    """
    if not len(x) == len(y) == len(groups):
        raise ValueError(f"expected equal lengths, got {len(x)}, {len(y)} and {len(groups)} groups")
    inside: dict[str | int, list[tuple[float, float]]] = {}
    for a, b, group in zip(x, y, groups, strict=True):
        if a is not None and b is not None:
            inside.setdefault(group, []).append((a, b))
    groups_of_pairs = [np.array(pairs) for pairs in inside.values() if len(pairs) > 1]
    centered = [_centered_ranks(pairs) for pairs in groups_of_pairs]
    if not centered:
        return None
    ranks = np.concatenate(centered)
    spread = np.sqrt(np.sum(ranks**2, axis=0))
    if spread.min() == 0:
        return None
    product = np.sum(ranks[:, 0] * ranks[:, 1])
    return round(float(product / (spread[0] * spread[1])), 12)


def _centered_ranks(pairs: Array) -> Array:
    """Mean ranks of each column of (n, 2), less their mean."""
    # Imported here: scipy.stats is slow to import, and only rank correlation needs it.
    from scipy import stats as _stats  # pyright: ignore[reportMissingTypeStubs]

    ranks = np.asarray(cast(Any, _stats).rankdata(pairs, axis=0), dtype=np.float64)
    return ranks - ranks.mean(axis=0)
