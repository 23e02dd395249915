"""Outcomes that are 0 or 1: right or wrong, solved or not. Student's t does not hold for them in small samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradus.stats.distributions import Array, binomial_cdf, normal_quantile

ROUNDING = 1e-9  # of the largest value: far above what averaging can round, far below any difference of rewards


def is_binary(*columns: Array) -> bool:
    """Says whether there are values and every one is 0 or 1."""
    return all(column.size > 0 and bool(np.all((column == 0) | (column == 1))) for column in columns)


def is_constant(values: Array, scale: float = 0.0) -> bool:
    """Says whether all values are one number, to rounding. ``scale``: the largest of the numbers that they are differences of."""
    if not values.size:
        return True
    size = max(1e-300, float(np.abs(values).max()))
    return bool(np.ptp(values) <= max(1e-12 * size, ROUNDING * scale))


def largest(*columns: Array) -> float:
    """The largest absolute value that is known, which rounding errors are measured by."""
    largest_value = 0.0
    for column in columns:
        finite = np.abs(column[np.isfinite(column)])
        largest_value = max(largest_value, float(finite.max(initial=0.0)))
    return largest_value


def without_rounding(difference: Array, scale: float) -> Array:
    """Differences of numbers up to ``scale``, where those that are rounding errors of averages become 0."""
    return np.where(np.abs(difference) <= ROUNDING * scale, 0.0, difference)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p of ``wins`` against ``losses``; ties are left out. For binary outcomes it is McNemar's exact test.

    Source: McNemar, Psychometrika 12, 1947; Conover, Practical Nonparametric Statistics, 1999, section 3.4.

    >>> sign_test(2, 0), sign_test(6, 0)
    (0.5, 0.03125)
    """
    decided = wins + losses
    if not decided:
        return 1.0
    return min(1.0, 2 * binomial_cdf(min(wins, losses), decided, 0.5))


def tango_interval(wins: int, losses: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Score interval of the difference of two paired shares, (wins - losses) / n, over ``n`` pairs.

    It is defined if all pairs agree, and stays within [-1, 1]. Source: Tango, Statistics in Medicine 17, 1998, eqs. 9-12.

    >>> [round(bound, 3) for bound in tango_interval(2, 0, 2)]
    [-0.315, 1.0]
    """
    z = float(normal_quantile(0.5 + level / 2))
    estimate = (wins - losses) / n
    low = _crossing(lambda delta: _score(delta, wins, losses, n) < z, estimate, -1.0)
    high = _crossing(lambda delta: _score(delta, wins, losses, n) > -z, estimate, 1.0)
    return low, high


def _score(delta: float, wins: int, losses: int, n: int) -> float:
    """Returns how many standard errors the observed difference lies above ``delta``, with the variance under ``delta``."""
    a = 2.0 * n
    b = -wins - losses + (2 * n - wins + losses) * delta
    c = -losses * delta * (1 - delta)
    root = np.sqrt(max(0.0, b * b - 4 * a * c))
    lost = (root - b) / (2 * a)  # the likeliest share of losses if delta is true
    variance = n * (2 * lost + delta * (1 - delta))
    gap = wins - losses - n * delta
    if gap == 0:
        return 0.0
    return float(gap / np.sqrt(max(variance, 1e-300)))


def _crossing(inside: Callable[[float], bool], start: float, end: float) -> float:
    """The point between ``start`` (inside) and ``end`` where ``inside`` stops to hold, by bisection."""
    for _ in range(60):
        middle = (start + end) / 2
        if inside(middle):
            start = middle
        else:
            end = middle
    return start
