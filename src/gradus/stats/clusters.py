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


def standard_error(x: Array, index: Index) -> tuple[float, int] | None:
    """Standard error of the mean of ``x`` (n,) and its degrees of freedom; None with fewer than two clusters.

    The sandwich estimate G / (G - 1) * sum_g (sum of residuals in g)^2 / n^2 with G - 1 degrees of freedom. With one value
    in each cluster it is s / sqrt(n) exactly. Source: Cameron and Miller, "A Practitioner's Guide to Cluster-Robust
    Inference", J. Human Resources 50(2), 2015, eq. 11, for a regression on a constant alone.
    """
    count = int(index.max()) + 1 if x.size else 0
    if count < 2:
        return None
    residuals = np.bincount(index, weights=x - x.mean(), minlength=count)
    variance = count / (count - 1) * float(np.sum(residuals**2)) / x.size**2
    return float(np.sqrt(variance)), count - 1
