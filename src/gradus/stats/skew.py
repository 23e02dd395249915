"""The mean of values that may be skewed: Student's t, which reaches further on the side of the long tail."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from gradus.stats.distributions import Array, student_cdf, student_quantile

_UNSEEN = 3.5  # times the sample's skewness: what 40 values of a lognormal need to be wrong in less than 3.5 %


@dataclass(frozen=True, kw_only=True)
class SkewTest:
    """The distribution that (mean - truth) / error is held against. ``bend``: 3.5 times the sample's skewness over the root of its size.

    A sample without a long tail's rare values has too low a mean and too small an error, at once. So the quantile t of that side becomes
    t + bend (t^2 / 3 + 1 / 6), the second-order expansion of Johnson, J. American Statistical Association 73, 1978. The other side,
    which the expansion would shorten, keeps t.
    """

    df: int
    bend: float = 0.0

    @classmethod
    def of(cls, values: Array, differing: int | None = None) -> SkewTest:
        """Returns the test for the mean of independent ``values`` (n,) that are not all one number.

        ``differing``: how many are off the commonest one, if not all others. Of rare gains only these tell the spread.
        """
        residuals = values - values.mean()
        cubes, squares = float(np.sum(residuals**3)), float(np.sum(residuals**2))
        df = len(values) - 1 if differing is None else min(len(values) - 1, differing)
        return cls(df=df, bend=_UNSEEN * cubes / squares**1.5)

    def reach(self, tail: float) -> tuple[float, float]:
        """Standard errors below and above the mean beyond which the truth lies with a chance of ``tail`` each."""
        t = student_quantile(1 - tail, self.df)
        further = abs(self.bend) * (t**2 / 3 + 1 / 6)
        return (t, t + further) if self.bend > 0 else (t + further, t)

    def p(self, t: float) -> float:
        """The two-sided p of a mean that lies ``t`` standard errors from 0: the level at which :meth:`reach` ends there."""
        size = abs(t)
        if t * self.bend < 0:  # the long tail lies on the side of 0
            bend = abs(self.bend)
            size = (sqrt(max(0.0, 1 + 4 / 3 * bend * (size - bend / 6))) - 1) / (2 / 3 * bend)
        return min(1.0, 2 * student_cdf(-size, self.df))
