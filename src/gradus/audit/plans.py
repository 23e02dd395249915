"""Policies without a mind: an answer looked up by the time and at most one feature of what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradus.audit.answers import COPY, AnswerSpace, render
from gradus.audit.features import Feature
from gradus.core import Action, EpisodeStart, Observation, Request

__all__ = ["Plan", "PlanPolicy", "Shape"]

Table = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a plan can depend on. ``steps`` stretches of the episode, or a cycle of ``steps`` turns; bins of a feature."""

    name: str
    steps: int = 1
    cycle: bool = False
    feature: Feature | None = None

    @property
    def bins(self) -> int:
        return self.feature.bins if self.feature else 1

    def cell(self, turn: int, horizon: int, observation: Observation) -> tuple[int, int]:
        """Row and column of the table for this turn."""
        step = turn % self.steps if self.cycle else min(self.steps - 1, turn * self.steps // max(1, horizon))
        return step, self.feature.bin(observation.data) if self.feature else 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``table`` (places, steps, bins): the word at each place for each cell. ``horizon``: turns of a usual episode."""

    space: AnswerSpace
    shape: Shape
    horizon: int
    table: Table

    def answer(self, turn: int, observation: Observation) -> str:
        step, column = self.shape.cell(turn, self.horizon, observation)
        return render(self.space.text(self.table[:, step, column].tolist()), observation.text)

    def describe(self) -> str:
        """The plan in words, each stretch's answer with how often it is given."""
        cells = [
            self.space.text(self.table[:, step, column].tolist())
            for step in range(self.shape.steps)
            for column in range(self.shape.bins)
        ]
        shown = [cell.replace(COPY, "(what was shown)")[:60] or "(nothing)" for cell in cells]
        if self.shape.feature:
            return f"{self.shape.name}: {' | '.join(shown)}"
        return " then ".join(shown) if not self.shape.cycle else "cycle of " + ", ".join(shown)


class PlanPolicy:
    """Plays many plans at once: the episodes of group g follow plan g // ``tasks``."""

    def __init__(self, plans: Sequence[Plan], *, tasks: int, name: str = "search") -> None:
        self.name = name
        self._plans, self._tasks = plans, tasks

    def start(self, episodes: Sequence[EpisodeStart]) -> _PlanSession:
        return _PlanSession([self._plans[episode.group // self._tasks] for episode in episodes])


class _PlanSession:
    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self._turns = [0] * len(plans)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        actions: list[Action] = []
        for request in requests:
            row = request.row
            actions.append(Action(text=self._plans[row].answer(self._turns[row], request.observation)))
            self._turns[row] += 1
        return actions

    def close(self) -> None:
        pass
