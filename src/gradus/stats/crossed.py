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
from gradus.stats.clusters import Index, Labels, Values, cluster_index
from gradus.stats.distributions import Array, normal_quantile, student_quantile
from gradus.stats.intervals import Interval, mean_interval, score_interval
from gradus.stats.paired import Paired, counted, paired_difference
from gradus.stats.skew import SkewTest

Rows = Sequence[Values]  # one row a training seed, one column a task


@dataclass(frozen=True)
class _Spread:
    """The variance of a mean in parts, each with the distribution that its estimate follows."""

    parts: Sequence[tuple[float, SkewTest]]

    @property
    def error(self) -> float:
        total = sum(variance for variance, _ in self.parts)
        return float(np.sqrt(total))

    def reach(self, tail: float) -> tuple[float, float]:
        """How far below and above the mean the interval reaches that leaves ``tail`` on either side."""
        squares = np.zeros(2)
        for variance, test in self.parts:
            if variance > 0:
                squares += np.square(test.reach(tail)) * variance
        below, above = np.sqrt(squares).tolist()
        return below, above

    def p(self, mean: float) -> float:
        """The share outside the interval that just touches 0."""
        # There is no closed form: each part has a distribution of its own. 50 halvings bring it to 1e-15.
        low, high = 0.0, 0.5
        for _ in range(50):
            middle = (low + high) / 2
            below, above = self.reach(middle)
            towards_zero = below if mean > 0 else above
            if towards_zero > abs(mean):
                low = middle
            else:
                high = middle
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
    (table,), labels = _usable([_array(values)], clusters)
    defined = table[np.isfinite(table)]
    if not defined.size:
        return Interval(mean=None, n=0)
    lacks_seeds = len(table) < min(2, len(values))
    table = _filled(table)
    mean = float(table.mean())
    n = table.shape[1]
    undefined = Interval(mean=mean, n=n)
    spread = None if lacks_seeds else _spread(table, np.zeros((1, n)), labels)
    if spread is None:
        return undefined
    below, above = spread.reach(0.5 - level / 2)
    error = spread.error
    has_error = error > ROUNDING * largest(defined)
    if is_binary(defined):
        size, z = _certain(n, labels, level)
        if has_error:  # so many independent values would have this error
            size = mean * (1 - mean) / error**2
            z = max(below, above) / error
        share = score_interval(mean, size, z)
        return replace(undefined, low=share.low, high=share.high)
    if is_constant(defined):
        return undefined
    if not has_error:
        return replace(mean_interval(table.mean(axis=0).tolist(), clusters=labels, level=level), mean=mean)
    return replace(undefined, low=mean - below, high=mean + above)


def _certain(n: int, labels: list[str] | None, level: float) -> tuple[float, float]:
    """For how many values a share without an error stands, and with which quantile; as of a single seed."""
    units = n if labels is None else len(set(labels))
    if units == n:
        return n, normal_quantile(0.5 + level / 2)
    return units, student_quantile(0.5 + level / 2, units - 1)


def crossed_difference(
    a: Rows, b: Rows, *, matched: bool, clusters: Labels | None = None, level: float = 0.95
) -> Paired:
    """a - b, paired over tasks, and over seeds too if ``matched``: row i of both then comes from one seed.

    One row stands for a policy that no training seed changes (a scripted one), or for a single checkpoint. What both sides have of a
    task is compared; the result is the mean over seeds (over pairs of seeds, if not ``matched``) of each one's mean over tasks.
    Bounds and p belong to one interval. If its error is 0, both are those of :func:`paired_difference` over the tasks' means: seeds that
    agree to the last digit add nothing. Wins are tasks on which the mean over seeds is higher.

    >>> paired = crossed_difference([[3.0, 4.0, 6.0], [3.5, 4.0, 5.0]], [[1.0, 2.0, 3.0]], matched=False)
    >>> round(paired.mean, 4), paired.wins, paired.n
    (2.25, 3, 3)
    """
    tables = [_array(a), _array(b)]
    if tables[0].shape[1] != tables[1].shape[1]:
        raise ValueError(f"expected tables of the same tasks, got {[table.shape for table in tables]}")
    if matched:
        missing = ~np.isfinite(tables[0] - tables[1])
        tables = [np.where(missing, np.nan, table) for table in tables]
    (first, second), labels = _usable(tables, clusters)
    scale = largest(first, second)
    x, y = _task_means(first), _task_means(second)
    by_task = without_rounding(x - y, scale)
    index = cluster_index(labels, len(by_task))
    paired = counted(by_task, index, level)
    if not paired.n:
        return paired
    parts = _parts(first, second, matched)
    mean = float(parts[0].mean())  # the second table of an incomplete pair adds up to 0
    if np.isfinite(first).all() and np.isfinite(second).all():
        mean = float(by_task.mean())
    paired = replace(paired, mean=mean)
    # One row that was all there is stands for a policy without seeds; one that is left over of several says nothing of seeds.
    lacks_seeds = len(first) < min(2, len(a)) or len(second) < min(2, len(b))
    spread = None if lacks_seeds else _spread(*parts, labels, paired.differing)
    if spread is None:
        return paired
    if spread.error > ROUNDING * scale:
        below, above = spread.reach(0.5 - level / 2)
        p = spread.p(mean)
        return replace(paired, low=mean - below, high=mean + above, error=spread.error, p=p, test="mean")
    return replace(paired_difference(x.tolist(), y.tolist(), labels, level=level), mean=mean)


def _task_means(table: Array) -> Array:
    """The mean of each task over the seeds that have it, (tasks,)."""
    defined = np.where(np.isfinite(table), table, np.nan)
    return np.asarray(np.nanmean(defined, axis=0), dtype=np.float64)


def _array(rows: Rows) -> Array:
    """A table (seeds, tasks)."""
    return np.array(rows, dtype=np.float64)  # None becomes nan


def _usable(tables: Sequence[Array], clusters: Labels | None) -> tuple[list[Array], list[str] | None]:
    """The tables (seeds, tasks) without tasks that lack all values in one of them, then without seeds that lack all; the tasks' labels."""
    tasks = np.all([np.isfinite(table).any(axis=0) for table in tables], axis=0)
    labels = None
    if clusters is not None:
        labels = [str(label) for label, is_used in zip(clusters, tasks, strict=True) if is_used]
    cut: list[Array] = []
    for table in tables:
        columns = table[:, tasks]
        seeds = np.isfinite(columns).any(axis=1)
        # A selection of all rows would be a copy in another order in memory, whose sums have other last bits.
        cut.append(columns if seeds.all() else columns[seeds])
    return cut, labels


def _parts(a: Array, b: Array, matched: bool) -> tuple[Array, Array]:
    """Two tables whose spreads add up to that of the difference. If values are missing, every seed is held against every other on the
    tasks that both have.
    """
    if matched:
        return _filled(a - b), np.zeros((1, a.shape[1]))
    if np.isfinite(a).all() and np.isfinite(b).all():
        return a, b
    pairs = _filled(a[:, None] - b[None])  # (seeds, seeds, tasks)
    by_seed = pairs.mean(axis=1)
    by_other_seed = pairs.mean(axis=(0, 1)) - pairs.mean(axis=0)
    return by_seed, by_other_seed


def _filled(table: Array) -> Array:
    """The table (..., tasks) without gaps: each row keeps its mean, and each task stands for what it adds to the error of that mean.

    A missing value becomes the mean of its row, and the others lie as much further from it as there are fewer of them. Mean squares
    over rows and columns are then those of the mean's linear terms, clustered two ways (Cameron, Gelbach and Miller, J. Business &
    Economic Statistics 29, 2011).
    """
    defined = np.isfinite(table)
    if defined.all():
        return table
    counts: Array = np.asarray(defined.sum(axis=-1, keepdims=True), dtype=np.float64)
    sums: Array = np.asarray(np.where(defined, table, 0.0).sum(axis=-1, keepdims=True), dtype=np.float64)
    divisors = np.maximum(counts, 1)
    row_means = sums / divisors
    # For pairs of seeds that share no task, if there are any.
    overall = float(row_means[counts > 0].mean())
    means: Array = np.where(counts > 0, row_means, overall)
    residuals = np.where(defined, table - means, 0.0)
    return means + residuals * table.shape[-1] / divisors


def _spread(a: Array, b: Array, clusters: Labels | None, differing: int | None = None) -> _Spread | None:
    """Returns what seeds and tasks add to the variance of mean(a) - mean(b); None with fewer than two tasks (or clusters).

    ``differing``: of a difference, how many tasks are off the commonest one; the test of the tasks' part then knows of skewness.
    """
    if clusters is not None:
        index = cluster_index(clusters, a.shape[1])
        a, b = _by_cluster(a, index), _by_cluster(b, index)
    columns = a.shape[1]
    if columns < 2:
        return None
    parts: list[tuple[float, SkewTest]] = []
    noise = 0.0
    for table in (a, b):
        seeds = len(table)
        if seeds < 2:
            continue
        # The mean squares of a two-way table: what rows add, and what is left of rows and columns.
        rows = table.mean(axis=1, keepdims=True) - table.mean()
        rest = table - table.mean(axis=0) - rows
        of_seeds = float(np.sum(rows**2)) / (seeds - 1) / seeds
        parts.append((of_seeds, SkewTest(df=seeds - 1)))
        freedom = (seeds - 1) * (columns - 1)
        noise += float(np.sum(rest**2)) / freedom / table.size
    by_task = a.mean(axis=0) - b.mean(axis=0)
    of_tasks = float(np.var(by_task, ddof=1)) / columns
    test = SkewTest(df=columns - 1)
    if differing is not None and not is_constant(by_task):
        test = SkewTest.of(by_task, differing)
    # The seeds' part holds the noise already.
    parts.append((max(of_tasks - noise, 0.0), test))
    return _Spread(parts)


def _by_cluster(table: Array, index: Index) -> Array:
    """One column a cluster, such that means stay and their spread is that of the sandwich estimate."""
    sizes = np.bincount(index)
    sums = np.stack([np.bincount(index, weights=row) for row in table])
    mean = table.mean()
    # As in clusters.unit_values, row by row.
    residuals = sums - sizes * mean
    return mean + residuals * len(sizes) / table.shape[1]
