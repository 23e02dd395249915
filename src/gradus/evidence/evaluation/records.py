"""From figures to the records of the JSON document: one a policy, one a pair, over one training seed or several.

Of several training seeds the intervals are over seeds and tasks at once (gradus.stats.crossed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import Condition
from gradus.core.documents import (
    ConditionResults,
    Mean,
    PairedMean,
    PairFigures,
    PolicyFigures,
)
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.evidence.evaluation.summary import REWARD, Figures, Key, Values, counts, rounded
from gradus.stats import (
    ERROR,
    Paired,
    crossed_difference,
    crossed_interval,
    level_of,
    mean_interval,
    mean_of,
    paired_difference,
    units_needed,
)

Runs = Mapping[int, Figures]
"""The figures of a policy by training seed; a policy that no training seed changes has one."""


@frozen_record
class Method:
    """How records are computed."""

    pairs: int = 1  # so many differences stand together
    looks: int = 1  # so often each is looked at
    power: float | None = None  # the difference in reward for which pairs say how many episodes are needed
    pass_k: Sequence[int] = ()  # for each k a figure pass@k
    reward_range: tuple[float, float] | None = None  # the lowest and the highest reward that the grader declares

    @property
    def level(self) -> float:
        """The level of the interval of each difference."""
        return level_of(looks=self.looks, pairs=max(1, self.pairs))


def condition_record(
    declared: Condition | None,
    figures: Mapping[str, Runs],
    pairs: Sequence[tuple[str, str]],
    method: Method,
) -> ConditionResults:
    """Returns the document's record of one condition. ``pairs``: those that are compared, as far as both have figures."""
    records: dict[str, PairFigures] = {}
    for a, b in pairs:
        if a in figures and b in figures:
            records[f"{a} - {b}"] = Pairing(figures[a], figures[b], method).record()
    runs = [run for runs in figures.values() for run in runs.values()]
    return {
        "episodes": max((len(run.episodes) for run in runs), default=0),
        "summary": declared.summary if declared else "",
        "clustered": declared is not None and declared.cluster is not None,
        "policies": {name: policy_record(runs, method) for name, runs in figures.items()},
        "pairs": records,
    }


def policy_record(runs: Runs, method: Method) -> PolicyFigures:
    """Returns the document's record of one policy.

    Of one training seed the intervals are over its tasks; of several, over seeds and tasks.
    """
    figures = list(runs.values())
    tasks, clusters = _shared(figures)
    record: Any = {}
    groups: JsonDict = {"components": {}, "curves": {}}
    for key in _keys(figures):
        rows = [_row(run, key, tasks) for run in figures]
        # A mean is no comparison: it is corrected for looks, and not for the number of pairs.
        level = level_of(looks=method.looks)
        if len(rows) == 1:
            interval = mean_interval(rows[0], clusters=clusters, level=level)
        else:
            interval = crossed_interval(rows, clusters=clusters, level=level)
        stored: Mean = {"mean": rounded(interval.mean), "low": rounded(interval.low), "high": rounded(interval.high)}
        # Whoever reads a mean must know of how many tasks there is none.
        if 0 < interval.n < len(tasks):
            stored["missing"] = len(tasks) - interval.n
        if key.group == "curves":
            groups["curves"].setdefault(key.name, []).append(stored)
        elif key.group == "components":
            groups["components"][key.name] = stored
        else:
            record[key.name] = stored
            if len(rows) > 1:  # over all tasks of each seed, not only those that all have
                stored["by_seed"] = [rounded(mean_of(run.values.get(key, []))) for run in figures]
    record |= groups | counts([episode for run in figures for episode in run.episodes])
    return record


class Pairing:
    """Two policies over the tasks that all of their training seeds have; ``a`` minus ``b``."""

    def __init__(self, a: Runs, b: Runs, method: Method) -> None:
        self.a, self.b = list(a.values()), list(b.values())
        self.method = method
        self.is_single = len(a) == len(b) == 1
        self.matched = list(a) == list(b)  # over training seeds too
        self._tasks, self.clusters = _shared([*self.a, *self.b])

    def _rows(self, key: Key) -> tuple[list[Values], list[Values]]:
        """The values of both policies, one row a training seed."""
        x = [_row(run, key, self._tasks) for run in self.a]
        y = [_row(run, key, self._tasks) for run in self.b]
        return x, y

    def difference(self, key: Key) -> Paired:
        """The difference of one figure."""
        x, y = self._rows(key)
        level = self.method.level
        if self.is_single:
            # Of other figures nobody says how far they can go.
            reward_range = self.method.reward_range if key == REWARD else None
            return paired_difference(x[0], y[0], self.clusters, level=level, reward_range=reward_range)
        return crossed_difference(x, y, matched=self.matched, clusters=self.clusters, level=level)

    def record(self) -> PairFigures:
        """Returns the document's record of the pair."""
        record: Any = {}
        components: dict[str, PairedMean] = {}
        for key in _keys([*self.a, *self.b]):
            if key.group == "measures":
                record[key.name] = self._stored(key)
            elif key.group == "components":
                components[key.name] = self._stored(key)
        if self.method.power is not None:
            record["reward"] |= self._needed(self.method.power)
        record["components"] = components
        return record

    def _stored(self, key: Key) -> PairedMean:
        stored = _stored_pair(self.difference(key), self.method.looks)
        if self.matched and not self.is_single:
            seeds = zip(*self._rows(key), strict=True)
            stored["by_seed"] = [rounded(paired_difference(x, y).mean) for x, y in seeds]
        return stored

    def _needed(self, power: float) -> dict[str, int | None]:
        """How many episodes, or clusters of them, show a difference of ``power`` in the reward."""
        paired = self.difference(REWARD)
        needed = units_needed(paired, power, alpha=1 - paired.level)
        # Episodes of a unit: of a cluster, or samples of a task.
        units = max(1, paired.units)
        size = max(1, round(len(self.a[0].episodes) / units))
        record = {"episodes_needed": needed and size * needed}
        if self.clusters is not None:  # more episodes of the same clusters add no power
            record["clusters_needed"] = needed
        return record


def _shared(runs: Sequence[Figures]) -> tuple[list[int], list[str] | None]:
    """The tasks that all have, by their seeds, and the hidden unit of each if there are such."""
    # A run that was stopped, or a data set that grew, leaves tasks that not all have: they are compared on the others.
    common = set(runs[0].tasks).intersection(*(run.tasks for run in runs))
    tasks = [task for task in runs[0].tasks if task in common]
    if runs[0].clusters is None:
        return tasks, None
    units: dict[int, str] = {}  # an episode that failed may not know its own
    for run in runs:
        for task, unit in zip(run.tasks, run.clusters or (), strict=True):
            units[task] = units.get(task) or unit
    return tasks, [units[task] for task in tasks]


def _row(figures: Figures, key: Key, tasks: Sequence[int]) -> Values:
    """The values of these tasks."""
    values = figures.values.get(key)
    by_task = dict(zip(figures.tasks, values, strict=True)) if values else {}
    return [by_task.get(task) for task in tasks]


def _keys(runs: Sequence[Figures]) -> list[Key]:
    return list(dict.fromkeys(key for run in runs for key in run.values))


def _stored_pair(paired: Paired, looks: int) -> PairedMean:
    """A paired difference as the document has it, without bounds and p if the pairs are too few for them.

    At a higher level p is as much larger as the errors that are allowed are rarer, so that it is always held against 0.05.
    """
    low, high, p = paired.low, paired.high, paired.p
    if paired.decision == "too few" or p is None:
        low = high = p = None  # an interval without a verdict would be read as one
    else:
        p = min(1.0, p * ERROR / (1 - paired.level))
    return {
        "mean": rounded(paired.mean),
        "low": rounded(low),
        "high": rounded(high),
        "level": rounded(paired.level) or 0.0,
        "looks": looks,
        "decision": paired.decision,
        "p": rounded(p),
        "wins": paired.wins,
        "ties": paired.ties,
        "episodes": paired.n,
        "units": paired.units,
        "differing": paired.differing,
    }
