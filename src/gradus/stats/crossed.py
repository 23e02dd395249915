"""Means over training seeds and tasks at once. Both are drawn, and every seed meets every task: they are crossed.

Each value is taken as mean + seed + task + noise, with both effects random. The mean squares of the two-way table estimate what the
seeds and what the tasks add to the variance of the mean (Owen, Annals of Applied Statistics 1, 2007, sets out this variance; Miller,
arXiv 2411.00640, asks evaluations for it). Each part keeps Student's quantile of its own degrees of freedom, and the half-widths are
added in squares (Howe, JASA 69, 1974): three seeds know little of how seeds differ, and the interval says so. A bootstrap
over three seeds does not: it draws from three values what Student's t knows to be wider (docs/evaluation.md has both coverages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradus.stats.binary import is_binary, is_constant
from gradus.stats.clusters import Labels, cluster_index
from gradus.stats.distributions import Array, normal_quantile, student_quantile
from gradus.stats.intervals import Interval, score_interval
from gradus.stats.paired import Paired

Rows = Sequence[Sequence[float | None]]  # one row a training seed, one column a task


@dataclass(frozen=True)
class _Spread:
    """The variance of a mean in parts, each with its degrees of freedom."""

    parts: Sequence[tuple[float, int]]

    @property
    def error(self) -> float:
        return float(np.sqrt(sum(variance for variance, _ in self.parts)))

    def half(self, tail: float) -> float:
        """Half the width of the interval that leaves ``tail`` on either side."""
        squares = (student_quantile(1 - tail, df) ** 2 * variance for variance, df in self.parts if variance > 0)
        return float(np.sqrt(sum(squares)))

    def p(self, mean: float) -> float:
        """The share outside the interval that just touches 0."""
        low, high = 0.0, 0.5
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(middle) > abs(mean) else (low, middle)
        return 2 * high


def crossed_interval(values: Rows, *, clusters: Labels | None = None, level: float = 0.95) -> Interval:
    """The mean of a table of seeds by tasks with its interval. A task that lacks a value for some seed is left out.

    Values that are all 0 or 1 get Wilson's interval for as many values as the error stands for. ``clusters``: one label a task.

    >>> interval = crossed_interval([[1.0, 2.0, 3.0, 5.0], [1.5, 2.0, 3.5, 5.0], [1.0, 2.5, 3.0, 4.0]])
    >>> round(interval.mean, 4), round(interval.low, 4), round(interval.high, 4)
    (2.7917, 0.3946, 5.1888)
    """
    (table,), labels = _complete([values], clusters)
    if not table.size:
        return Interval(mean=None, low=None, high=None, n=0)
    mean, n = float(table.mean()), table.shape[1]
    spread = _spread(table, np.zeros((1, n)), labels)
    if is_binary(table.ravel()) and spread is not None:
        size, z = float(n), float(normal_quantile(0.5 + level / 2))
        if spread.error > 0:
            size, z = mean * (1 - mean) / spread.error**2, spread.half(0.5 - level / 2) / spread.error
        share = score_interval(mean, size, z)
        return Interval(mean=mean, low=share.low, high=share.high, n=n)
    if spread is None or is_constant(table.ravel()):
        return Interval(mean=mean, low=None, high=None, n=n)
    half = spread.half(0.5 - level / 2)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def crossed_difference(
    a: Rows, b: Rows, *, matched: bool, clusters: Labels | None = None, level: float = 0.95
) -> Paired:
    """a - b, paired over tasks, and over seeds too if ``matched``: row i of both then comes from one seed.

    One row stands for a policy that no training seed changes (a scripted one), or for a single checkpoint. Bounds and p belong to one
    interval. Wins are tasks on which the mean over seeds is higher. The rest of :class:`Paired` is undefined here.

    >>> paired = crossed_difference([[3.0, 4.0, 6.0], [3.5, 4.0, 5.0]], [[1.0, 2.0, 3.0]], matched=False)
    >>> round(paired.mean, 4), paired.wins, paired.n
    (2.25, 3, 3)
    """
    (left, right), labels = _complete([a, b], clusters)
    n = left.shape[1]
    by_task = left.mean(axis=0) - right.mean(axis=0) if n else np.zeros(0)
    tables = (left - right, np.zeros((1, n))) if matched else (left, right)
    spread = _spread(*tables, labels) if n else None
    mean = float(by_task.mean()) if n else None
    low = high = error = p = None
    if spread is not None and mean is not None and spread.error > 0:
        half = spread.half(0.5 - level / 2)
        low, high, error, p = mean - half, mean + half, spread.error, spread.p(mean)
    return Paired(
        mean=mean,
        low=low,
        high=high,
        bca_low=None,
        bca_high=None,
        wins=int(np.sum(by_task > 0)),
        ties=int(np.sum(by_task == 0)),
        win_low=None,
        win_high=None,
        n=n,
        error=error,
        p=p,
    )


def _complete(tables: Sequence[Rows], clusters: Labels | None) -> tuple[list[Array], Labels | None]:
    """The tables (seeds, tasks) without the tasks that lack a value anywhere, and the labels of those that stayed."""
    arrays = [np.array(table, dtype=np.float64) for table in tables]  # None becomes nan
    if len({array.shape[1] for array in arrays}) > 1:
        raise ValueError(f"expected tables of the same tasks, got {[array.shape for array in arrays]}")
    kept = np.all([np.isfinite(array).all(axis=0) for array in arrays], axis=0)
    labels = None if clusters is None else [str(label) for label, stays in zip(clusters, kept, strict=True) if stays]
    return [array[:, kept] for array in arrays], labels


def _spread(a: Array, b: Array, clusters: Labels | None) -> _Spread | None:
    """What seeds and tasks add to the variance of mean(a) - mean(b); None with fewer than two tasks (or clusters)."""
    if clusters is not None:
        index = cluster_index(clusters, a.shape[1])
        a, b = _by_cluster(a, index), _by_cluster(b, index)
    columns = a.shape[1]
    if columns < 2:
        return None
    parts: list[tuple[float, int]] = []
    noise = 0.0
    for table in (each for each in (a, b) if len(each) > 1):
        seeds = len(table)
        rows = table.mean(axis=1, keepdims=True) - table.mean()
        rest = table - table.mean(axis=0) - rows
        parts.append((float(np.sum(rows**2)) / (seeds - 1) / seeds, seeds - 1))
        noise += float(np.sum(rest**2)) / ((seeds - 1) * (columns - 1)) / table.size
    tasks = float(np.var(a.mean(axis=0) - b.mean(axis=0), ddof=1)) / columns
    return _Spread([*parts, (max(tasks - noise, 0.0), columns - 1)])  # the seeds' part holds the noise already


def _by_cluster(table: Array, index: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Array:
    """One column a cluster, such that means stay and their spread is that of the sandwich estimate."""
    sizes = np.bincount(index)
    sums = np.stack([np.bincount(index, weights=row) for row in table])
    mean = table.mean()
    return mean + (sums - sizes * mean) * len(sizes) / table.shape[1]
