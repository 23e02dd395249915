"""From figures to the records of the JSON document: one a policy, one a pair, over one training seed or several.

Of several training seeds the intervals are over seeds and tasks at once (gradus.stats.crossed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.core import Condition
from gradus.core.documents import (
    ByCondition,
    ConditionResults,
    PairedMean,
    PairFigures,
    PolicyFigures,
    differences_of,
)
from gradus.evidence.evaluation.summary import REWARD, Figures, Key, Values, counts, mean, rounded
from gradus.stats import (
    Paired,
    crossed_difference,
    crossed_interval,
    holm,
    mean_interval,
    paired_difference,
    units_needed,
)

LEVEL = 0.95  # of every interval, unless an evaluation looks at its episodes while they come in
Runs = Mapping[int, Figures]
"""The figures of a policy by training seed; a policy that no training seed changes has one."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How records are computed. ``level``: of every interval. ``pass_k``: for each k a figure ``pass@k``.

    ``power``: the difference in reward for which pairs say how many episodes are needed, if ``tests`` are corrected together.
    ``correct_pairs``: Holm's correction goes over the pairs too, not only over the conditions.
    """

    level: float = LEVEL
    power: float | None = None
    tests: int = 1
    pass_k: Sequence[int] = ()
    correct_pairs: bool = False


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
            records[f"{a} - {b}"] = Pairing(figures[a], figures[b], method.level).record(method)
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
    groups: dict[str, Any] = {"components": {}, "curves": {}}
    for key in _keys(figures):
        rows = [_row(run, key, tasks) for run in figures]
        if len(rows) == 1:
            interval = mean_interval(rows[0], clusters=clusters, level=method.level)
        else:
            interval = crossed_interval(rows, clusters=clusters)
        stored: Any = {name: rounded(getattr(interval, name)) for name in ("mean", "low", "high")}
        if key.group == "curves":
            groups["curves"].setdefault(key.name, []).append(stored)
        elif key.group == "components":
            groups["components"][key.name] = stored
        else:
            record[key.name] = stored
            if len(rows) > 1:  # over all tasks of each seed, not only those that all have
                stored["by_seed"] = [rounded(mean(run.values.get(key, []))) for run in figures]
    record |= groups | counts([episode for run in figures for episode in run.episodes])
    return record


class Pairing:
    """Two policies over the tasks that all of their training seeds have; ``a`` minus ``b``."""

    def __init__(self, a: Runs, b: Runs, level: float = LEVEL) -> None:
        self.a, self.b = list(a.values()), list(b.values())
        self.level = level
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
        if self.is_single:
            return paired_difference(x[0], y[0], self.clusters, level=self.level)
        return crossed_difference(x, y, matched=self.matched, clusters=self.clusters)

    def record(self, method: Method) -> PairFigures:
        """Returns the document's record of the pair."""
        record: Any = {}
        components: dict[str, PairedMean] = {}
        for key in _keys([*self.a, *self.b]):
            if key.group == "measures":
                record[key.name] = self._stored(key)
            elif key.group == "components":
                components[key.name] = self._stored(key)
        if method.power is not None:
            record["reward"] |= self._needed(method.power, method.tests)
        record["components"] = components
        return record

    def _stored(self, key: Key) -> PairedMean:
        stored = stored_pair(self.difference(key), self.level)
        if self.matched and not self.is_single:
            seeds = zip(*self._rows(key), strict=True)
            stored["by_seed"] = [rounded(mean(_minus(x, y))) for x, y in seeds]
        return stored

    def _needed(self, power: float, tests: int) -> dict[str, int | None]:
        """How many episodes, or clusters of them, show a difference of ``power`` in the reward."""
        paired = self.difference(REWARD)
        # Holm's correction asks the smallest p of ``tests`` for alpha / tests; the others are asked for less.
        needed = units_needed(paired, power, alpha=0.05 / tests)
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


def _minus(a: Values, b: Values) -> Values:
    return [None if x is None or y is None else x - y for x, y in zip(a, b, strict=True)]


def _keys(runs: Sequence[Figures]) -> list[Key]:
    return list(dict.fromkeys(key for run in runs for key in run.values))


def holm_adjusted(conditions: ByCondition, *, over_pairs: bool = False) -> None:
    """Add ``p_holm`` to every pair's figures: the same comparison under several conditions is several tests."""
    families: dict[tuple[str, ...], list[PairedMean]] = {}
    for condition in conditions.values():
        for name, pair in condition["pairs"].items():
            family = () if over_pairs else (name,)
            for measure, figure in differences_of(pair).items():
                families.setdefault((*family, measure), []).append(figure)
            for component, figure in pair["components"].items():
                families.setdefault((*family, "components", component), []).append(figure)
    for figures in families.values():
        adjusted = holm([figure["p"] for figure in figures])
        for figure, p in zip(figures, adjusted, strict=True):
            figure["p_holm"] = rounded(p)


def stored_pair(paired: Paired, level: float) -> PairedMean:
    """A paired difference as the document has it. At a higher ``level`` p is as much larger as the errors that are allowed are rarer."""
    p = None if paired.p is None else min(1.0, paired.p * (1 - LEVEL) / (1 - level))
    return {
        "mean": rounded(paired.mean),
        "low": rounded(paired.low),
        "high": rounded(paired.high),
        "wins": paired.wins,
        "ties": paired.ties,
        "win_low": rounded(paired.win_low),
        "win_high": rounded(paired.win_high),
        "episodes": paired.n,
        "p": rounded(p),
    }
