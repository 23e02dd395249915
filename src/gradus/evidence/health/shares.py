"""Shares of episodes, answers or groups, and how sure they are: a step of eight episodes says little about its share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradus.evidence.health.history import Array, History
from gradus.stats.intervals import score_interval

_STEPS, _MOST_STEPS = 5, 50
_ENOUGH = 400  # episodes, answers or groups that are pooled if five steps hold fewer
_MANY = 1e6
_SURE = 2.5  # standard errors that a share must lie above a limit; rules ask at every step


@dataclass(frozen=True, kw_only=True)
class Share:
    """``now``: over the last five steps. ``low``: the lower bound of Wilson's interval, over as many steps as hold enough, or over these five."""

    now: float
    low: float

    def above(self, limit: float) -> bool:
        """Whether the share lies above ``limit`` beyond chance."""
        return self.now > limit and self.low > limit


def share_of(history: History, name: str, count: str = "episodes") -> Share | None:
    """The recent share ``name`` of what ``count`` counts at each step; None if fewer than three of five steps say it."""
    counts = counts_of(history, count)
    return recent_share(history.column(name) * counts, counts)


def counts_of(history: History, name: str) -> Array:
    """How many of ``name`` each step had, (n,); many where that is not known, so that the share is taken as it is."""
    return np.nan_to_num(history.column(name), nan=_MANY)


def recent_share(hits: Array, counts: Array) -> Share | None:
    """The share of ``hits`` among ``counts``, both one value a step (n,), the newest last; NaN is not known."""
    hits, counts = hits[-_MOST_STEPS:], counts[-_MOST_STEPS:]
    known = ~np.isnan(hits) & (counts > 0)
    if known[-_STEPS:].sum() < 3:
        return None
    hits, counts = np.where(known, hits, 0.0), np.where(known, counts, 0.0)
    pooled = np.cumsum(counts[::-1])
    enough = max(_STEPS, 1 + int(np.searchsorted(pooled, _ENOUGH)))
    now, wide = (_bounded(hits[-steps:].sum(), counts[-steps:].sum()) for steps in (_STEPS, enough))
    return Share(now=now[0], low=max(now[1], wide[1]))


def _bounded(hits: float, count: float) -> tuple[float, float]:
    """A share and its lower bound. Faults may have been taken off that were none, so that fewer than 0 are left."""
    share = min(1.0, max(0.0, hits / count))
    return share, score_interval(share, count, _SURE).low or 0.0
