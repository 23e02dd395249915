"""BCa bootstrap intervals of means, many columns at once. Source: Efron, JASA 82, 1987.

All columns with the same clusters share one set of resamples, drawn as counts: the bootstrap means are then one matrix
product, and the same call gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gradus.stats.binary import is_constant
from gradus.stats.clusters import Labels, cluster_index
from gradus.stats.distributions import Array, normal_cdf, normal_quantile
from gradus.stats.intervals import Interval

RESAMPLES = 4000
_AT_ONCE = 500  # resamples: all of them at once take gigabytes for thousands of tasks


def bca_interval(
    values: Sequence[float | None],
    *,
    clusters: Labels | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of ``values`` with its BCa bounds; None entries are left out.

    Bounds are None below two values or clusters, and if all values are equal: resampling them says nothing.
    """
    kept = [i for i, value in enumerate(values) if value is not None]
    x = np.array([values[i] for i in kept], dtype=np.float64)
    labels = None if clusters is None else [str(clusters[i]) for i in kept]
    if not x.size:
        return Interval(mean=None, low=None, high=None, n=0)
    bounds = bca_bounds(x[:, None], clusters=labels, level=level, resamples=resamples, seed=seed)
    low, high = (None, None) if bounds is None or is_constant(x) else (float(bounds[0][0]), float(bounds[1][0]))
    return Interval(mean=float(x.mean()), low=low, high=high, n=x.size)


def bca_bounds(
    columns: Array,
    *,
    clusters: Labels | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Array, Array] | None:
    """Bounds of the mean of every column of ``columns`` (n, m): two arrays (m,), or None with fewer than two clusters."""
    index = cluster_index(clusters, len(columns))
    count = int(index.max()) + 1 if len(columns) else 0
    if count < 2:
        return None
    sizes = np.bincount(index, minlength=count).astype(np.float64)
    sums = np.zeros((count, columns.shape[1]))
    np.add.at(sums, index, columns)
    counts = _counts(count, resamples, seed)
    parts = [counts[start : start + _AT_ONCE].astype(np.float64) for start in range(0, resamples, _AT_ONCE)]
    boot = np.sort(np.concatenate([(part @ sums) / (part @ sizes)[:, None] for part in parts]), axis=0)
    means = columns.mean(axis=0)
    bias = _bias(boot, means)
    skew = _acceleration(sums, sizes)
    tails = normal_quantile(np.array([0.5 - level / 2, 0.5 + level / 2]))
    low, high = (_quantile(boot, _adjusted(bias, skew, float(z))) for z in tails)
    constant = np.ptp(columns, axis=0) == 0
    return np.where(constant, means, low), np.where(constant, means, high)


@lru_cache(maxsize=4)
def _counts(n: int, resamples: int, seed: int) -> np.ndarray:
    """How often each of ``n`` units is drawn in each resample, (resamples, n), in whole numbers of two bytes."""
    rng = np.random.default_rng(seed)
    sizes = [min(_AT_ONCE, resamples - start) for start in range(0, resamples, _AT_ONCE)]
    return np.concatenate([rng.multinomial(n, np.full(n, 1 / n), size=size).astype(np.uint16) for size in sizes])


def _bias(boot: Array, means: Array) -> Array:
    """z0 (m,): where the mean lies among the bootstrap means; ties count half, as lumpy data have many."""
    tolerance = 1e-12 * np.maximum(1.0, np.abs(means))
    below = (boot < means - tolerance).mean(axis=0)
    ties = (np.abs(boot - means) <= tolerance).mean(axis=0)
    edge = 0.5 / len(boot)
    return normal_quantile(np.clip(below + ties / 2, edge, 1 - edge))


def _acceleration(sums: Array, sizes: Array) -> Array:
    """a (m,): the skewness of the jackknife over clusters."""
    left_out = (sums.sum(axis=0) - sums) / (sizes.sum() - sizes)[:, None]
    deviation = left_out.mean(axis=0) - left_out
    square = np.sum(deviation**2, axis=0)
    cube = np.sum(deviation**3, axis=0)
    return np.divide(cube, 6 * square**1.5, out=np.zeros_like(cube), where=square > 0)


def _adjusted(bias: Array, skew: Array, z: float) -> Array:
    """The percentile that BCa reads instead of the nominal one, (m,)."""
    shifted = bias + z
    return normal_cdf(bias + shifted / (1 - skew * shifted))


def _quantile(ordered: Array, p: Array) -> Array:
    """Quantile p[j] of the sorted column j, linearly interpolated, (m,)."""
    place = p * (len(ordered) - 1)
    below = np.floor(place).astype(np.intp)
    above = np.minimum(below + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1], dtype=np.intp)
    share = place - below
    return ordered[below, column] * (1 - share) + ordered[above, column] * share
