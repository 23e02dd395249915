"""Means over training seeds and tasks at once. Both are drawn, and every seed meets every task: they are crossed.

Each value is taken as mean + seed + task + noise, with both effects random. The mean squares of the two-way table estimate what the
seeds and what the tasks add to the variance of the mean (Owen, Annals of Applied Statistics 1, 2007, sets out this variance; Miller,
arXiv 2411.00640, asks evaluations for it). Each part keeps Student's quantile of its own degrees of freedom, and the half-widths are
added in squares (Howe, JASA 69, 1974): three seeds know little of how seeds differ, and the interval says so. A bootstrap
over three seeds does not: it draws from three values what Student's t knows to be wider (docs/evaluation.md has both coverages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradus.stats.binary import ROUNDING, is_binary, is_constant, largest, without_rounding
from gradus.stats.clusters import Labels, cluster_index
from gradus.stats.distributions import Array, normal_quantile, student_quantile
from gradus.stats.intervals import Interval, mean_interval, score_interval
from gradus.stats.paired import Paired, paired_difference

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
    """The mean over seeds of each seed's mean over the tasks where it has a value, with its interval.

    ``n`` is the number of tasks that have a value for some seed. Values that are all 0 or 1 get Wilson's interval for as many values as
    the error stands for. If the error is 0, the bounds are those of the tasks' means: of shares, each task counts once, or each cluster
    if there are fewer. ``clusters``: one label a task.

    >>> interval = crossed_interval([[1.0, 2.0, 3.0, 5.0], [1.5, 2.0, 3.5, 5.0], [1.0, 2.5, 3.0, 4.0]])
    >>> round(interval.mean, 4), round(interval.low, 4), round(interval.high, 4)
    (2.7917, 0.3946, 5.1888)
    """
    (given,), labels = _known([_array(values)], clusters)
    known = given[np.isfinite(given)]
    if not known.size:
        return Interval(mean=None, low=None, high=None, n=0)
    table = _filled(given)
    mean, n = float(table.mean()), table.shape[1]
    lost = len(given) < min(2, len(values))
    spread = None if lost else _spread(table, np.zeros((1, n)), labels)
    error = 0.0 if spread is None or spread.error <= ROUNDING * largest(known) else spread.error
    if is_binary(known) and spread is not None:
        if error > 0:
            size, z = mean * (1 - mean) / error**2, spread.half(0.5 - level / 2) / error
        else:
            size, z = _certain(n, labels, level)
        share = score_interval(mean, size, z)
        return Interval(mean=mean, low=share.low, high=share.high, n=n)
    if spread is None or is_constant(known):
        return Interval(mean=mean, low=None, high=None, n=n)
    if error == 0:
        return replace(mean_interval(table.mean(axis=0).tolist(), clusters=labels, level=level), mean=mean)
    half = spread.half(0.5 - level / 2)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def _certain(n: int, labels: list[str] | None, level: float) -> tuple[float, float]:
    """For how many values a share without an error stands, and with which quantile; as of a single seed."""
    alone = n if labels is None else len(set(labels))
    return alone, float(
        normal_quantile(0.5 + level / 2) if alone == n else student_quantile(0.5 + level / 2, alone - 1)
    )


def crossed_difference(
    a: Rows, b: Rows, *, matched: bool, clusters: Labels | None = None, level: float = 0.95
) -> Paired:
    """a - b, paired over tasks, and over seeds too if ``matched``: row i of both then comes from one seed.

    One row stands for a policy that no training seed changes (a scripted one), or for a single checkpoint. What both sides have of a
    task is compared; the result is the mean over seeds (over pairs of seeds, if not ``matched``) of each one's mean over tasks.
    Bounds and p belong to one interval. If its error is 0, both are those of :func:`paired_difference` over the tasks' means: seeds that
    agree to the last digit add nothing. Wins are tasks on which the mean over seeds is higher. The rest of :class:`Paired` is undefined here.

    >>> paired = crossed_difference([[3.0, 4.0, 6.0], [3.5, 4.0, 5.0]], [[1.0, 2.0, 3.0]], matched=False)
    >>> round(paired.mean, 4), paired.wins, paired.n
    (2.25, 3, 3)
    """
    left, right = _array(a), _array(b)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"expected tables of the same tasks, got {[left.shape, right.shape]}")
    if matched:
        missing = ~np.isfinite(left - right)
        left, right = np.where(missing, np.nan, left), np.where(missing, np.nan, right)
    (left, right), labels = _known([left, right], clusters)
    n, scale = left.shape[1], largest(left, right)
    x, y = (np.nanmean(table, axis=0) if n else np.zeros(0) for table in (left, right))
    by_task = without_rounding(x - y, scale)
    mean = low = high = error = p = None
    if n:
        tables = _tables(left, right, matched)
        whole = bool(np.isfinite(left).all() and np.isfinite(right).all())
        mean = float(
            by_task.mean() if whole else tables[0].mean()
        )  # the second table of an incomplete pair adds up to 0
        lost = len(left) < min(2, len(a)) or len(right) < min(2, len(b))
        spread = None if lost else _spread(*tables, labels)
        if spread is not None and spread.error > ROUNDING * scale:
            half = spread.half(0.5 - level / 2)
            low, high, error, p = mean - half, mean + half, spread.error, spread.p(mean)
        elif spread is not None:
            tasks = paired_difference(x.tolist(), y.tolist(), labels, level=level)
            low, high, error, p = tasks.low, tasks.high, tasks.error, tasks.p
    return Paired(
        mean=mean,
        low=low,
        high=high,
        wins=int(np.sum(by_task > 0)),
        ties=int(np.sum(by_task == 0)),
        win_low=None,
        win_high=None,
        n=n,
        units=n,
        error=error,
        p=p,
    )


def _array(rows: Rows) -> Array:
    return np.array(rows, dtype=np.float64)  # None becomes nan


def _known(tables: Sequence[Array], clusters: Labels | None) -> tuple[list[Array], list[str] | None]:
    """The tables (seeds, tasks) without tasks that lack all values in one of them, then without seeds that lack all; the tasks' labels."""
    kept = np.all([np.isfinite(table).any(axis=0) for table in tables], axis=0)
    labels = None if clusters is None else [str(label) for label, stays in zip(clusters, kept, strict=True) if stays]
    cut = [table[:, kept] for table in tables]
    seeds = [np.isfinite(table).any(axis=1) for table in cut]
    return [table if each.all() else table[each] for table, each in zip(cut, seeds, strict=True)], labels


def _tables(left: Array, right: Array, matched: bool) -> tuple[Array, Array]:
    """Two tables whose spreads add up to that of the difference. If values are missing, every seed is held against every other on the
    tasks that both have.
    """
    if matched:
        return _filled(left - right), np.zeros((1, left.shape[1]))
    if np.isfinite(left).all() and np.isfinite(right).all():
        return left, right
    pairs = _filled(left[:, None] - right[None])  # (seeds, seeds, tasks)
    return pairs.mean(axis=1), pairs.mean(axis=(0, 1)) - pairs.mean(axis=0)


def _filled(table: Array) -> Array:
    """The table (..., tasks) without gaps: each row keeps its mean, and each task stands for what it adds to the error of that mean.

    A missing value becomes the mean of its row, and the known ones lie as much further from it as there are fewer of them. Mean squares
    over rows and columns are then those of the mean's linear terms, clustered two ways (Cameron, Gelbach and Miller, J. Business &
    Economic Statistics 29, 2011).
    """
    known = np.isfinite(table)
    if known.all():
        return table
    counts: Array = np.asarray(known.sum(axis=-1, keepdims=True), dtype=np.float64)
    sums: Array = np.asarray(np.where(known, table, 0.0).sum(axis=-1, keepdims=True), dtype=np.float64)
    own = sums / np.maximum(counts, 1)
    means: Array = np.where(
        counts > 0, own, float(own[counts > 0].mean())
    )  # of seeds that share no task, if any do not
    return means + np.where(known, table - means, 0.0) * table.shape[-1] / np.maximum(counts, 1)


def _spread(a: Array, b: Array, clusters: Labels | None) -> _Spread | None:
    """Returns what seeds and tasks add to the variance of mean(a) - mean(b); None with fewer than two tasks (or clusters)."""
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
