"""Outcomes that take two values: right or wrong, solved or not. Student's t does not hold for them in small samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradus.stats.distributions import Array, normal_cdf, normal_quantile

ROUNDING = 1e-9  # of the largest value: far above what averaging can round, far below any difference of rewards


def is_binary(*columns: Array) -> bool:
    """Says whether there are values and every one is 0 or 1."""
    return all(column.size > 0 and bool(np.all((column == 0) | (column == 1))) for column in columns)


def two_values(a: Array, b: Array) -> tuple[float, float] | None:
    """The two numbers that all outcomes of both policies are, the lower first; None if there are others.

    Numbers other than 0 and 1 must both be seen in one policy: two policies that never vary tell nothing of what they may earn.
    """
    if is_binary(a, b):
        return 0.0, 1.0
    numbers = np.unique(np.concatenate([a, b]))
    varies = max(len(np.unique(a)), len(np.unique(b))) == 2
    if len(numbers) != 2 or not varies:
        return None
    return float(numbers[0]), float(numbers[1])


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


def score_p(wins: int, losses: int) -> float:
    """Two-sided p of ``wins`` against ``losses`` of paired outcomes that take two values; ties do not count.

    McNemar's test with Edwards's correction for continuity (Psychometrika 13, 1948). It rejects nothing that the exact sign test
    keeps at 5 %, and :func:`score_interval_of_pairs` is its inversion.

    >>> round(score_p(5, 0), 3), round(score_p(6, 0), 3)
    (0.074, 0.041)
    """
    # The correction would turn z negative, and without pairs that differ there is nothing to divide by.
    if wins == losses:
        return 1.0
    z = (abs(wins - losses) - 1) / float(np.sqrt(wins + losses))
    return 2 * normal_cdf(-z)


def score_interval_of_pairs(wins: int, losses: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Score interval of the difference of two paired shares, (wins - losses) / n, over ``n`` pairs, corrected for continuity.

    It is defined if all pairs agree, stays within [-1, 1], and leaves out 0 just if :func:`score_p` is below 1 - ``level``. Source: Tango,
    Statistics in Medicine 17, 1998, eqs. 9-12, whose statistic is here one win nearer to 0.

    >>> [round(bound, 3) for bound in score_interval_of_pairs(12, 0, 12)]
    [0.397, 1.0]
    """
    z = normal_quantile(0.5 + level / 2)
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
    # The correction brings the difference one win nearer to 0, never beyond.
    if abs(gap) <= 1:
        return 0.0
    size = (abs(gap) - 1) / np.sqrt(max(variance, 1e-300))
    return float(np.copysign(size, gap))


def _crossing(inside: Callable[[float], bool], start: float, end: float) -> float:
    """The point between ``start`` (inside) and ``end`` where ``inside`` stops to hold, by bisection."""
    # 60 halvings are finer than the numbers between -1 and 1.
    for _ in range(60):
        middle = (start + end) / 2
        if inside(middle):
            start = middle
        else:
            end = middle
    return start
