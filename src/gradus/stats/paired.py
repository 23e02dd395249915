"""Comparing two policies on the same seeds: the one place where a difference is called proven."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gradus.stats.binary import (
    is_constant,
    largest,
    score_interval_of_pairs,
    score_p,
    two_values,
    without_rounding,
)
from gradus.stats.clusters import Index, Labels, Values, cluster_index, dense, standard_error, unit_values
from gradus.stats.distributions import Array, normal_quantile
from gradus.stats.skew import SkewTest

Decision = Literal["better", "worse", "undecided", "too few"]
LEAST_UNITS = 40  # independent ones below which the interval of a skewed mean holds the truth too rarely
LEAST_DIFFERING = 8  # units off the commonest difference, below which nobody knows how the rare ones differ
_LEAST_P = 1e-15  # below it 1 - p rounds to 1, whose quantile is infinite


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The differences a - b over ``n`` pairs.

    ``low``, ``high``: bounds of the mean difference at ``level``; ``p``: two-sided, of the same test, so that it is below 1 - ``level`` just if
    the bounds leave out 0. ``test``: *values* for outcomes that take two values (Tango's score interval), *mean* for others (Student's t
    that allows for skewness), *range* for differences that are all one number (the declared range bounds what was not seen).
    Without a test, bounds and p are None. ``wins`` pairs have a > b and ``ties`` have a = b, to rounding. ``units``: independent ones,
    clusters or else pairs; ``differing``: those with a difference off the commonest one. ``error``: the standard error of the mean difference.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    wins: int
    ties: int
    n: int
    units: int
    differing: int
    error: float | None = None
    p: float | None = None
    test: Literal["values", "mean", "range"] | None = None

    @property
    def decision(self) -> Decision:
        """Says what is proven of the mean difference: ``better`` than 0, ``worse``, ``undecided``, or that the pairs are too few to say it."""
        is_small = self.units < LEAST_UNITS or self.differing < LEAST_DIFFERING
        if self.low is None or self.high is None or (self.test == "mean" and is_small):
            return "too few"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "undecided"

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


def paired_difference(
    a: Values,
    b: Values,
    clusters: Labels | None = None,
    *,
    level: float = 0.95,
    reward_range: tuple[float, float] | None = None,
) -> Paired:
    """a - b, pair by pair; a pair where either is None is left out. ``reward_range``: the lowest and the highest value that either can be.

    >>> paired = paired_difference([1.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    >>> round(paired.mean, 4), paired.wins, paired.n, paired.decision
    (1.3333, 3, 3, 'too few')
    """
    if len(a) != len(b):
        raise ValueError(f"expected pairs, got {len(a)} and {len(b)} values; roll out both policies on the same seeds")
    both = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x is not None and y is not None]
    x = np.array([a[i] for i in both], np.float64)
    y = np.array([b[i] for i in both], np.float64)
    scale = largest(x, y)
    difference = without_rounding(x - y, scale)
    index = dense(cluster_index(clusters, len(a))[both])
    paired = counted(difference, index, level)
    if paired.units < 2:
        return paired
    units = unit_values(difference, index)
    numbers = two_values(x, y)
    # Of few outcomes two numbers may be two of many: 0 and 1 are known to be a choice of two, and so are the ends of a range.
    is_choice = numbers in ((0.0, 1.0), reward_range) or paired.units >= LEAST_UNITS
    if numbers is not None and is_choice and clusters is None:
        return _by_values(paired, *numbers)
    if is_constant(units, scale):
        return paired if reward_range is None else _by_range(paired, reward_range[1] - reward_range[0])
    return _by_mean(paired, units)


def counted(difference: Array, index: Index, level: float) -> Paired:
    """The counts of some differences (n,) in clusters ``index`` (n,), before any test."""
    units = int(index.max(initial=-1)) + 1
    differing = 0
    if units:
        numbers, counts = np.unique(difference, return_counts=True)
        commonest = numbers[np.argmax(counts)]
        differing = len(np.unique(index[difference != commonest]))
    return Paired(
        mean=float(difference.mean()) if units else None,
        level=level,
        wins=int(np.sum(difference > 0)),
        ties=int(np.sum(difference == 0)),
        n=len(difference),
        units=units,
        differing=differing,
    )


def _by_values(paired: Paired, lower: float, upper: float) -> Paired:
    """The test of outcomes that are ``lower`` or ``upper``."""
    wins, n = paired.wins, paired.n
    losses = n - wins - paired.ties
    low, high = score_interval_of_pairs(wins, losses, n, level=paired.level)
    span = upper - lower
    share = (wins - losses) / n
    # A pair's difference is -1, 0 or 1: its square is 1 for each pair that differs.
    variance = (wins + losses) / n - share**2
    error = span * float(np.sqrt(variance / n))
    return replace(paired, low=span * low, high=span * high, error=error, p=score_p(wins, losses), test="values")


def _by_range(paired: Paired, span: float) -> Paired:
    """The bounds of the mean if all differences are one number, and none can be larger than ``span``.

    What none of n units showed has a share of at most 1 - (error / 2)^(1/n) (Clopper and Pearson, Biometrika 26, 1934); it may be as far
    away as the range allows.
    """
    mean = paired.mean or 0.0
    unseen = 1 - ((1 - paired.level) / 2) ** (1 / paired.units)
    p = min(1.0, 2 * (span / (span + abs(mean))) ** paired.units)
    low, high = mean - unseen * (mean + span), mean + unseen * (span - mean)
    return replace(paired, low=low, high=high, p=p, test="range")


def _by_mean(paired: Paired, units: Array) -> Paired:
    """The test of the mean of independent units that are not all one number."""
    mean = paired.mean or 0.0
    error = standard_error(units)
    test = SkewTest.of(units, paired.differing)
    below, above = test.reach((1 - paired.level) / 2)
    low, high = mean - below * error, mean + above * error
    return replace(paired, low=low, high=high, error=error, p=test.p(mean / error), test="mean")


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
        # Never below that of a smaller p: what is rejected later must not be surer.
        highest = max(highest, raised)
        adjusted[i] = highest
    return adjusted
