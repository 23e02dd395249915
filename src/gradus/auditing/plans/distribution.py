"""The distribution over tables that cross-entropy search moves: one categorical in each cell of each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.answers import AnswerSpace
from gradus.auditing.plans.plan import Plan, Shape, Table

_STEP = 0.5  # how far a generation moves the distribution
_LEAN = 0.4  # towards the words of the plan that won before
_KEEP = 0.5  # chance at the start that a bent reflex keeps its own word
_TIED = 0.5  # chance that a draw uses one word in all cells of a place: what is constant is found sooner


@dataclass
class Distribution:
    """``weights``: per place an array (steps, bins, words), each cell summing to 1."""

    shape: Shape
    weights: list[npt.NDArray[np.float64]]

    @classmethod
    def begin(cls, space: AnswerSpace, shape: Shape, incumbent: Plan | None) -> Distribution:
        """Uniform, leaning towards the words that the incumbent uses at each place, and towards the reflex it may bend."""
        weights: list[npt.NDArray[np.float64]] = []
        for place, size in enumerate(space.sizes):
            keeps = bool(shape.bends) and shape.keeps[place]
            words = np.full(size, 1 / size)
            if incumbent is not None:
                used = np.bincount(incumbent.table[place].ravel(), minlength=size)[:size]
                words = (1 - _LEAN) * words + _LEAN * used / used.sum() if used.sum() else words
            full = np.append(words * (1 - _KEEP), _KEEP) if keeps else words
            weights.append(np.tile(full, (shape.steps, shape.bins, 1)))
        return cls(shape=shape, weights=weights)

    def stretched(self, incumbent: Plan) -> list[Table]:
        """The incumbent's table in this shape, repeated if there are more cells; and with the reflex's words kept."""
        old = incumbent.table
        steps = [i * old.shape[1] // self.shape.steps for i in range(self.shape.steps)]
        bins = [i * old.shape[2] // self.shape.bins for i in range(self.shape.bins)]
        table = old[:, steps][:, :, bins].copy()
        if not self.shape.bends:
            return [table]
        kept = table.copy()
        for place, keeps in enumerate(self.shape.keeps):
            if keeps:
                kept[place] = self.weights[place].shape[-1] - 1
        return [table, kept]

    def draw(self, rng: np.random.Generator, n: int) -> list[Table]:
        """``n`` tables (places, steps, bins): in each cell the place where a uniform number falls in the running sum."""
        drawn = np.empty((n, len(self.weights), self.shape.steps, self.shape.bins), dtype=np.intp)
        for place, weight in enumerate(self.weights):
            below = np.cumsum(weight, axis=-1)[None]
            uniform = rng.random((n, self.shape.steps, self.shape.bins, 1))
            each = np.minimum((uniform > below).sum(axis=-1), weight.shape[-1] - 1)
            together = np.cumsum(weight.mean(axis=(0, 1)))
            one = np.minimum((rng.random((n, 1)) > together).sum(axis=-1), weight.shape[-1] - 1)
            drawn[:, place] = np.where(rng.random((n, 1, 1)) < _TIED, one[:, None, None], each)
        return list(drawn)

    def move(self, elite: Sequence[Table]) -> None:
        """Move each cell towards how often the elite uses each word there."""
        tables = np.stack(elite)
        for place, weight in enumerate(self.weights):
            used = (tables[:, place, :, :, None] == np.arange(weight.shape[-1])).mean(axis=0)
            self.weights[place] = (1 - _STEP) * weight + _STEP * used

    def mode(self) -> Table:
        """The most likely table."""
        return np.stack([weight.argmax(axis=-1) for weight in self.weights])
