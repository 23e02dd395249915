"""A run's records as columns, the few statistics that rules need of them, and the finding that a rule returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


SEVERITIES = ("info", "warn", "stop")  # from harmless to worst


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's view of a run. The remedy is the rule's."""

    severity: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through the values: its rise over the whole window, t, the slope over its standard error, and the error of the rise.

    The error is widened for what neighboring steps have in common, so that a slow wave does not count as a trend.
    """

    rise: float
    t: float
    error: float


class History:
    """Records of one kind in order, read as columns; missing and null are NaN. Names may be dotted: ``metrics.play``.

    A new stage of a reward schedule rewards something else, so what came before it cannot be compared: :meth:`now` leaves it out.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]], kind: str = "step") -> None:
        self._kind = kind
        # These are of all records, and shared by the histories that are parts of this one.
        self._all: list[Mapping[str, Any]] = []
        self._columns: dict[str, Array] = {}
        self._begins: list[int] = []
        self.add(records)

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take in newer records; those of other kinds are left out. What was read before is not read again."""
        fresh = [record for record in records if record.get("kind", "step") == self._kind]
        for record in fresh:
            place = len(self._all)
            same = place > 0 and self._all[-1].get("stage") == record.get("stage")
            self._begins.append(self._begins[-1] if same else place)
            self._all.append(record)
        for name, values in self._columns.items():
            self._columns[name] = np.concatenate([values, _column(fresh, name)])
        self._span = slice(0, len(self._all))

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """The records in order."""
        return self._all[self._span]

    @property
    def last(self) -> Mapping[str, Any]:
        """The newest record."""
        return self._all[self._span.stop - 1]

    def __len__(self) -> int:
        return self._span.stop - self._span.start

    @property
    def step(self) -> int | None:
        """The last step's number."""
        return self.last.get("step") if len(self) else None

    def before(self, count: int) -> History:
        """The history as it was after ``count`` records, of the stage that the last of them belongs to."""
        earlier = History(())
        end = self._span.start + count
        begin = self._begins[end - 1] if count else end
        earlier._all, earlier._columns, earlier._begins = self._all, self._columns, self._begins
        earlier._span = slice(max(begin, self._span.start), end)
        return earlier

    def now(self) -> History:
        """The history of the stage at hand."""
        return self.before(len(self))

    def column(self, name: str, last: int | None = None) -> Array:
        """Values of ``name`` over the last so many records (all if None), (n,)."""
        if name not in self._columns:
            self._columns[name] = _column(self._all, name)
        values = self._columns[name][self._span]
        return values if last is None else values[-last:]

    def known(self, name: str, last: int | None = None) -> Array:
        """As :meth:`column`, without what is missing."""
        values = self.column(name, last)
        return values[~np.isnan(values)]

    def mean(self, name: str, last: int) -> float | None:
        """Mean over the last so many records; None if fewer than three are known or half of them is missing."""
        values = self.known(name, last)
        return float(values.mean()) if len(values) >= 3 and 2 * len(values) >= last else None

    def first_mean(self, name: str, count: int) -> float | None:
        """Mean over the first ``count`` records that have the figure."""
        values = self.head(name, count)
        return float(values.mean()) if len(values) >= 3 else None

    def head(self, name: str, count: int) -> Array:
        """The first ``count`` values that are known, (at most count,)."""
        return self.known(name)[:count]

    def names(self, parent: str, last: int = 1) -> list[str]:
        """Keys of a nested mapping in the last records."""
        keys: dict[str, None] = {}
        for record in self._all[max(self._span.start, self._span.stop - last) : self._span.stop]:
            inner = record.get(parent)
            if isinstance(inner, Mapping):
                keys.update(dict.fromkeys(str(key) for key in inner))
        return list(keys)


def trend(values: Array) -> Trend | None:
    """The trend of equally spaced ``values`` (n,), NaN left out; None below eight values."""
    place = np.arange(len(values))[~np.isnan(values)]
    y = values[~np.isnan(values)]
    if len(y) < 8:
        return None
    x = place - place.mean()
    slope = float(np.sum(x * y) / np.sum(x * x))
    residuals = y - y.mean() - slope * x
    noise = float(np.sqrt(np.sum(residuals**2) / (len(y) - 2)))
    if noise < 1e-12:
        t = 0.0 if abs(slope) < 1e-12 else float(np.copysign(np.inf, slope))
        return Trend(rise=slope * (len(values) - 1), t=t, error=0.0)
    echo = float(np.sum(residuals[1:] * residuals[:-1]) / np.sum(residuals**2))
    echo = min(0.9, max(0.0, echo))
    error = noise / float(np.sqrt(np.sum(x * x))) * float(np.sqrt((1 + echo) / (1 - echo)))
    return Trend(rise=slope * (len(values) - 1), t=slope / error, error=error * (len(values) - 1))


def difference(earlier: Array, later: Array) -> float | None:
    """(mean of later - mean of earlier) over its standard error; None below three values on a side."""
    a, b = earlier[~np.isnan(earlier)], later[~np.isnan(later)]
    if len(a) < 3 or len(b) < 3:
        return None
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    gap = float(b.mean() - a.mean())
    if error < 1e-12:
        return 0.0 if abs(gap) < 1e-12 else float(np.copysign(np.inf, gap))
    return gap / error


def _column(records: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.array([_number(record, name) for record in records], dtype=np.float64)


def _number(record: Mapping[str, Any], name: str) -> float:
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, Mapping):
            return np.nan
        value = value.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return np.nan
    return float(value)
