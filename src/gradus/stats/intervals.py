"""Intervals of a mean (Student's t) and of a share (Wilson), and the chance that one of several attempts succeeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import comb, fsum

import numpy as np

from gradus.stats.binary import ROUNDING, is_binary, is_constant, largest
from gradus.stats.clusters import Labels, Values, cluster_index, dense, standard_error, unit_values
from gradus.stats.distributions import normal_quantile, student_quantile


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its confidence bounds. ``n`` values were used; bounds are None if nothing is known of the spread."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int


def mean_interval(values: Values, *, clusters: Labels | None = None, level: float = 0.95) -> Interval:
    """Mean of ``values`` with its interval; None entries are left out.

    Student's t; if all values are 0 or 1, Wilson's score interval of a share. Bounds are None below two values (or clusters),
    and if all values (or clusters' means) are one number other than 0 or 1: such a sample says nothing of its own spread.

    ``clusters``: one label per value; bounds are then cluster-robust with one degree of freedom less than clusters;
    a share takes the effective number of values that this error implies, with Student's t for the normal quantile. Source:
    Korn and Graubard, Survey Methodology 24, 1998; Dean and Pagano, J. Survey Statistics and Methodology 3, 2015.

    >>> interval = mean_interval([1.0, 2.0, 3.0, 4.0])
    >>> interval.mean, round(interval.low, 4), round(interval.high, 4)
    (2.5, 0.4457, 4.5543)
    >>> mean_interval([1.0])
    Interval(mean=1.0, low=None, high=None, n=1)
    """
    defined = [i for i, value in enumerate(values) if value is not None]
    x = np.array([values[i] for i in defined], dtype=np.float64)
    if not x.size:
        return Interval(mean=None, n=0)
    index = dense(cluster_index(clusters, len(values))[defined])
    mean = float(x.mean())
    undefined = Interval(mean=mean, n=x.size)
    units = unit_values(x, index)
    if len(units) < 2:
        return undefined
    error, df = standard_error(units), len(units) - 1
    if is_binary(x):
        share = wilson(float(x.sum()), x.size, level=level)
        if len(units) < x.size:
            share = _clustered_share(mean, x.size, error, df, level)
        return replace(undefined, low=share.low, high=share.high)
    # One number in all values, or in all clusters, says nothing of how others would differ.
    if is_constant(x) or error <= ROUNDING * largest(x):
        return undefined
    half = student_quantile(0.5 + level / 2, df) * error
    return replace(undefined, low=mean - half, high=mean + half)


def _clustered_share(mean: float, n: int, error: float, df: int, level: float) -> Interval:
    """Wilson's interval of a share over the effective number of values that come in clusters."""
    size = df + 1.0  # if the clusters do not differ, each counts once
    if error > 0 and 0 < mean < 1:
        size = min(float(n), mean * (1 - mean) / error**2)
    return score_interval(mean, size, student_quantile(0.5 + level / 2, df))


def wilson(successes: float, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share. Source: Wilson, JASA 22, 1927.

    >>> ten = wilson(10, 10)
    >>> ten.mean, round(ten.low, 4), round(ten.high, 4)
    (1.0, 0.7225, 1.0)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes = {successes}, n = {n}")
    if n == 0:
        return Interval(mean=None, n=0)
    return replace(score_interval(successes / n, n, normal_quantile(0.5 + level / 2)), n=n)


def score_interval(share: float, n: float, z: float) -> Interval:
    """Wilson's interval for a share of ``n`` values, which need not be a whole number, with the quantile ``z``."""
    shrink = 1 + z * z / n
    center = (share + z * z / (2 * n)) / shrink
    half = z / shrink * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    # At 0 and 1 the bound equals the share exactly; rounding must not put it on the wrong side.
    low = min(share, max(0.0, center - half))
    high = max(share, min(1.0, center + half))
    return Interval(mean=share, low=low, high=high, n=round(n))


def mean_of(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are defined; None if all are missing."""
    defined = [float(value) for value in values if value is not None]
    return fsum(defined) / len(defined) if defined else None


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
