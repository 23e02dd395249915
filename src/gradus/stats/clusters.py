"""Values that come in clusters: several episodes of one hidden person are not several independent persons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradus.stats.distributions import Array

Labels = Sequence[str] | Sequence[int]
Index = npt.NDArray[np.intp]  # the cluster of each value, from 0
Values = Sequence[float | None]  # None where a value is missing


def cluster_index(clusters: Labels | None, n: int) -> Index:
    """Labels to 0, 1, ... in order of first appearance, (n,); without labels every value is its own cluster."""
    if clusters is None:
        return np.arange(n)
    if len(clusters) != n:
        raise ValueError(f"expected one cluster label for each of {n} values, got {len(clusters)}")
    order: dict[str | int, int] = {}
    return np.array([order.setdefault(label, len(order)) for label in clusters], dtype=np.intp)


def dense(index: Index) -> Index:
    """The same clusters, numbered without gaps."""
    return np.unique(index, return_inverse=True)[1]


def unit_values(x: Array, index: Index) -> Array:
    """One value a cluster, (clusters,), with the mean of ``x`` (n,), whose spread is that of the clusters; ``x`` itself if each has one.

    They are what each cluster adds to the mean: the mean + G / n * (sum of residuals in g), for G clusters. Their standard error is the
    sandwich estimate with G - 1 degrees of freedom. Source: Cameron and Miller, "A Practitioner's Guide to Cluster-Robust
    Inference", J. Human Resources 50(2), 2015, eq. 11, for a regression on a constant alone.
    """
    count = int(index.max(initial=-1)) + 1
    if count == x.size:
        return x
    mean = x.mean()
    sums = np.bincount(index, weights=x - mean, minlength=count)
    return mean + sums * count / x.size


def standard_error(units: Array) -> float:
    """Standard error of the mean of two or more independent values (n,)."""
    return float(units.std(ddof=1) / np.sqrt(len(units)))
