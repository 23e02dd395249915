"""A run's records as columns, and the few statistics that rules need of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gradus.core.findings import Status
from gradus.core.frozen_record import frozen_record

Array = npt.NDArray[np.float64]
_EXACT = 1e-12  # below it noise is rounding alone
Record = Mapping[str, Any]  # one line of metrics.jsonl, or of the evaluation
Fired = tuple[Status, str] | None
"""What a rule says of a history: how bad it is (``note``, ``warn`` or ``fail``), with the evidence; None if it does not fire."""


@frozen_record
class Trend:
    """A straight line through the values.

    The error is widened for what neighboring steps have in common, so that a slow wave does not count as a trend.
    """

    rise: float  # over the whole window
    t: float  # the slope over its standard error
    error: float  # of the rise


class History:
    """Records of one kind in order, read as columns; missing and null are NaN. Names may be dotted: ``metrics.play``.

    A new stage of a reward schedule rewards something else, so what came before it cannot be compared: :meth:`now` leaves it out.
    """

    def __init__(self, records: Sequence[Record], kind: str = "step") -> None:
        self._kind = kind
        # These are of all records, and shared by the histories that are parts of this one.
        self._all: list[Record] = []
        self._columns: dict[str, Array] = {}
        self.missing: set[str] = set()  # figures that a rule asked for and no record has
        self._stage_starts: list[int] = []
        self.add(records)

    def add(self, records: Sequence[Record]) -> None:
        """Take in newer records; those of other kinds are left out. What was read before is not read again."""
        fresh = [record for record in records if record.get("kind", "step") == self._kind]
        for record in fresh:
            start = len(self._all)
            if start and self._all[-1].get("stage") == record.get("stage"):
                start = self._stage_starts[-1]
            self._stage_starts.append(start)
            self._all.append(record)
        for name, values in self._columns.items():
            self._columns[name] = np.concatenate([values, _column(fresh, name)])
        self._span = slice(0, len(self._all))

    @property
    def records(self) -> Sequence[Record]:
        """The records in order."""
        return self._all[self._span]

    @property
    def last(self) -> Record:
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
        end = self._span.start + count
        start = self._stage_starts[end - 1] if count else end
        # The records and columns are shared: a diagnosis looks at the history before every step.
        earlier = copy(self)
        earlier._span = slice(max(start, self._span.start), end)
        return earlier

    def now(self) -> History:
        """The history of the stage at hand."""
        return self.before(len(self))

    def column(self, name: str, last: int | None = None, *, optional: bool = False) -> Array:
        """Values of ``name`` over the last so many records (all if None), (n,)."""
        if name not in self._columns:
            self._columns[name] = _column(self._all, name)
        if not optional and np.isnan(self._columns[name]).all():
            self.missing.add(name)
        values = self._columns[name][self._span]
        return values if last is None else values[-last:]

    def measured(self, name: str, last: int | None = None) -> Array:
        """As :meth:`column`, without what is missing."""
        return measured(self.column(name, last))

    def mean(self, name: str, last: int) -> float | None:
        """Mean over the last so many records; None if fewer than three have the figure, or if half of them have not."""
        values = self.measured(name, last)
        if len(values) < 3 or 2 * len(values) < last:
            return None
        return float(values.mean())

    def first_mean(self, name: str, count: int) -> float | None:
        """Mean over the first ``count`` records that have the figure; None if fewer than three have it."""
        values = self.head(name, count)
        return float(values.mean()) if len(values) >= 3 else None

    def head(self, name: str, count: int) -> Array:
        """The first ``count`` values that are not missing, (at most count,)."""
        return self.measured(name)[:count]

    def names(self, parent: str, last: int = 1) -> list[str]:
        """Keys of a nested mapping in the last records."""
        parents = [record.get(parent, {}) for record in self.records[-last:]]
        return list(dict.fromkeys(key for mapping in parents for key in mapping))


def measured(values: Array) -> Array:
    """Returns the values that are not missing."""
    return values[~np.isnan(values)]


def trend(values: Array) -> Trend | None:
    """The trend of equally spaced ``values`` (n,), NaN left out; None below eight values."""
    place = np.arange(len(values))[~np.isnan(values)]
    y = measured(values)
    if len(y) < 8:
        return None
    x = place - place.mean()
    spread = np.sum(x * x)
    slope = float(np.sum(x * y) / spread)
    steps = len(values) - 1
    residuals = y - y.mean() - slope * x
    squares = np.sum(residuals**2)
    noise = float(np.sqrt(squares / (len(y) - 2)))
    if noise < _EXACT:
        return Trend(rise=slope * steps, t=_without_noise(slope), error=0.0)
    # Neighboring steps have something in common: as an autoregressive process of first order would.
    echo = float(np.sum(residuals[1:] * residuals[:-1]) / squares)
    echo = min(0.9, max(0.0, echo))
    widening = float(np.sqrt((1 + echo) / (1 - echo)))
    error = noise / float(np.sqrt(spread)) * widening
    return Trend(rise=slope * steps, t=slope / error, error=error * steps)


def difference(earlier: Array, later: Array) -> float | None:
    """(mean of later - mean of earlier) over its standard error; None below three values on a side."""
    a, b = measured(earlier), measured(later)
    if len(a) < 3 or len(b) < 3:
        return None
    variance = a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)
    error = float(np.sqrt(variance))
    gap = float(b.mean() - a.mean())
    return _without_noise(gap) if error < _EXACT else gap / error


def _without_noise(change: float) -> float:
    """The t of a change between values that have no noise."""
    return 0.0 if abs(change) < _EXACT else float(np.copysign(np.inf, change))


def _column(records: Sequence[Record], name: str) -> Array:
    path = name.split(".")
    return np.array([_number(record, path) for record in records], dtype=np.float64)


def _number(record: Record, path: Sequence[str]) -> float:
    value: Any = record
    for key in path:
        value = cast(Record, value).get(key) if isinstance(value, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else np.nan
