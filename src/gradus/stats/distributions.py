"""The few distribution functions that the statistics need, typed. ``scipy.special`` is imported, which is quick; ``scipy.stats`` is not."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import special as _special  # pyright: ignore[reportMissingTypeStubs]

Array = npt.NDArray[np.float64]
_functions = cast(Any, _special)


def binomial_cdfs(k: Array, n: Array, p: float) -> Array:
    """P(X <= k) for ``n`` trials that succeed with chance ``p`` each, element by element."""
    return np.asarray(_functions.bdtr(k, n.astype(np.int64), p), dtype=np.float64)


def normal_quantile(p: float) -> float:
    """The z with P(Z <= z) = p; infinite at 0 and 1."""
    return float(_functions.ndtri(p))


def normal_cdf(z: float) -> float:
    """P(Z <= z)."""
    return float(_functions.ndtr(z))


def chi_square_quantile(p: float, df: float) -> float:
    """The x with P(X <= x) = p for ``df`` degrees of freedom."""
    return float(_functions.chdtri(df, 1 - p))


def student_cdf(t: float, df: float) -> float:
    """P(T <= t) for Student's t with ``df`` degrees of freedom."""
    return float(_functions.stdtr(df, t))


def student_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p."""
    return float(_functions.stdtrit(df, p))


def noncentral_t_cdf(t: float, df: float, shift: float) -> float:
    """P(T <= t) for the noncentral t distribution."""
    return float(_functions.nctdtr(df, shift, t))
