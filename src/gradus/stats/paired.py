"""Comparing two policies on the same seeds, and many such comparisons at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradus.stats.binary import (
    ROUNDING,
    is_binary,
    is_constant,
    largest,
    sign_test,
    tango_interval,
    without_rounding,
)
from gradus.stats.clusters import Index, Labels, Values, cluster_index, dense, standard_error
from gradus.stats.distributions import Array, normal_quantile, student_cdf, student_quantile
from gradus.stats.intervals import wilson

_LEAST_P = 1e-15  # below it 1 - p is 1


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The differences a - b over ``n`` pairs.

    ``low``, ``high``: bounds of the mean difference, Student's t, or Tango's score interval if all outcomes are 0 or 1. They
    are None if all differences (or clusters' means) are one number: a sample without spread says nothing of its spread. ``wins`` pairs have a > b and ``ties`` have a = b, to rounding; ``win_low``, ``win_high`` are Wilson's
    bounds of the win rate wins / n, None under clusters, where pairs are not independent. ``error`` is the standard error of
    the mean difference. ``p`` is two-sided: of the t test, or of the exact sign test (McNemar's, for outcomes that are 0 or 1)
    where t does not hold.
    """

    mean: float | None
    low: float | None
    high: float | None
    wins: int
    ties: int
    win_low: float | None
    win_high: float | None
    n: int
    units: int  # independent ones: clusters, or pairs without clusters
    error: float | None
    p: float | None
    exact: bool = False  # p is that of the sign test

    @property
    def t(self) -> float | None:
        """Returns how many standard errors the difference is from 0; where p is exact, the normal quantile with the same p."""
        if self.mean is None or self.p is None:
            return None
        if self.exact or not self.error:
            return self.deviations()
        return self.mean / self.error

    def deviations(self, looks: int = 1) -> float | None:
        """The normal quantile with the same p, signed: what t says, but alike for few pairs and for many.

        ``looks``: how many such comparisons were made. Each may be the lucky one, so p is multiplied with their number (Bonferroni).
        """
        if self.mean is None or self.p is None:
            return None
        chance = max(self.p, _LEAST_P) * looks
        if chance >= 1:
            return 0.0
        size = normal_quantile(1 - chance / 2)
        return float(np.copysign(size, self.mean))

    @property
    def sd(self) -> float | None:
        """Standard deviation of a difference, such that ``error`` = sd / sqrt(n); clusters inflate it.

        None if all differences are one number: such a sample says nothing of its spread.
        """
        if not self.error:
            return None
        return self.error * float(np.sqrt(self.n))


def paired_difference(
    a: Values,
    b: Values,
    clusters: Labels | None = None,
    *,
    level: float = 0.95,
) -> Paired:
    """a - b, pair by pair; a pair where either is None is left out.

    >>> paired = paired_difference([1.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    >>> round(paired.mean, 4), paired.wins, paired.n, round(paired.p, 4)
    (1.3333, 3, 3, 0.0572)
    """
    if len(a) != len(b):
        raise ValueError(f"expected pairs, got {len(a)} and {len(b)} values; roll out both policies on the same seeds")
    both = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x is not None and y is not None]
    x = np.array([a[i] for i in both], np.float64)
    y = np.array([b[i] for i in both], np.float64)
    scale = largest(x, y)
    difference = without_rounding(x - y, scale)
    index = dense(cluster_index(clusters, len(a))[both])
    n, units = len(both), int(index.max(initial=-1)) + 1
    wins, ties = int(np.sum(difference > 0)), int(np.sum(difference == 0))
    independent = clusters is None and n > 1  # of one pair no interval is known
    low, high, error, p = _student(difference, index, level)
    exact = False
    if independent and is_binary(x, y):
        exact, p = True, sign_test(wins, n - wins - ties)
        low, high = tango_interval(wins, n - wins - ties, n, level=level)
    elif error is not None and _is_flat(difference, error, scale):
        # All differences are one number: the units have one sign, or are all ties.
        signs = units if abs(difference.mean()) > ROUNDING * scale else 0
        exact, p, low, high, error = True, sign_test(signs, 0), None, None, None
    rate = wilson(wins, n, level=level) if independent else None
    return Paired(
        mean=float(difference.mean()) if n else None,
        low=low,
        high=high,
        wins=wins,
        ties=ties,
        win_low=rate.low if rate else None,
        win_high=rate.high if rate else None,
        n=n,
        units=units,
        error=error,
        p=p,
        exact=exact,
    )


def _is_flat(difference: Array, error: float, scale: float) -> bool:
    """Says whether all differences, or clusters' means of them, are one number: such a sample says nothing of its spread."""
    return is_constant(difference, scale) or error <= ROUNDING * scale


def _student(
    difference: Array, index: Index, level: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """Bounds, standard error and two-sided p of the mean difference, all None if undefined."""
    spread = standard_error(difference, index)
    if spread is None:
        return None, None, None, None
    error, df = spread
    mean = float(difference.mean())
    half = student_quantile(0.5 + level / 2, df) * error
    p = 2 * student_cdf(-abs(mean) / error, df) if error > 0 else 1.0
    return mean - half, mean + half, error, p


def holm(p_values: Values) -> list[float | None]:
    """Holm's step-down adjusted p-values, in the given order; None stays None and is not counted.

    Source: Holm, Scandinavian Journal of Statistics 6, 1979.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        raised = min(1.0, (len(order) - rank) * p)
        highest = max(highest, raised)
        adjusted[i] = highest
    return adjusted
