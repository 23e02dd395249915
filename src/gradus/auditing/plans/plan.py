"""Policies that answer turn by turn: blindly, as another policy but for some answers, or by a plan of the search.

A plan is an answer looked up by the time and at most one feature of what is shown. A plan may also bend a reflex: at the places that it keeps, the reflex's own word stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.answers import COPY, AnswerSpace
from gradus.auditing.plans.features import Feature
from gradus.core import Action, EpisodeStart, Observation, Policy, Request, Session, child_rng, child_seed

Table = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The form of a plan: ``steps`` stretches of the episode or a cycle of ``steps`` turns, and bins of a feature.

    ``after``: one answer in that share of the episode; the other steps are a cycle that begins then, once something was reached.
    ``bends``: the name of the reflex whose words it may keep, at the places ``keeps``.
    """

    name: str
    steps: int = 1
    cycle: bool = False
    after: float = 0.0
    feature: Feature | None = None
    bends: str | None = None
    keeps: tuple[bool, ...] = ()

    @property
    def bins(self) -> int:
        return self.feature.bins if self.feature else 1

    def cell(self, turn: int, horizon: int, observation: Observation) -> tuple[int, int]:
        """Row and column of the table for this turn."""
        if self.after:
            past = turn - ceil(self.after * horizon)
            step = 0 if past < 0 else 1 + past % (self.steps - 1)
        else:
            step = turn % self.steps if self.cycle else min(self.steps - 1, turn * self.steps // max(1, horizon))
        return step, self.feature.bin(observation.data) if self.feature else 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``table`` (places, steps, bins): the word at each place for each cell, one past the last word to keep the reflex's.

    ``horizon``: turns of a usual episode.
    """

    space: AnswerSpace
    shape: Shape
    horizon: int
    table: Table

    def answer(self, turn: int, observation: Observation, reflex: str = "") -> str:
        """The answer of the plan; ``reflex`` is the answer of the policy that it bends."""
        step, column = self.shape.cell(turn, self.horizon, observation)
        kept = self.space.parse(reflex) if self.shape.bends else ()
        return self.space.text(self.table[:, step, column].tolist(), kept).replace(COPY, observation.text)

    def describe(self) -> str:
        """The plan in words."""
        shape = self.shape
        marks = ["·"] * len(self.space.places)
        rows: list[str] = []
        for step in range(shape.steps):
            cells = [
                self.space.text(self.table[:, step, column].tolist(), marks).replace(COPY, "(what was shown)")[:60]
                or "(nothing)"
                for column in range(shape.bins)
            ]
            rows.append(f"by {shape.feature.name}: {' | '.join(cells)}" if shape.feature else cells[0])
        if shape.after:
            told = f"{rows[0]} then a cycle of {', '.join(rows[1:])}"
        else:
            told = "cycle of " + ", ".join(rows) if shape.cycle else " then ".join(rows)
        return f"{shape.bends} with {told}" if shape.bends else told


# Episode, turn, what is shown, and the other policy's answer ("" if there is none) -> answer.
Answer = Callable[[EpisodeStart, int, Observation, str], str]


class TurnPolicy:
    """Answers by a function, which is told what ``other`` says if there is another policy."""

    def __init__(self, answer: Answer, *, name: str, other: Policy | None = None) -> None:
        self.name = name
        self._answer, self._other = answer, other

    def start(self, episodes: Sequence[EpisodeStart]) -> TurnSession:
        return TurnSession(self._answer, episodes, self._other.start(episodes) if self._other else None)


class TurnSession:
    """Counts the turns of each episode."""

    def __init__(self, answer: Answer, episodes: Sequence[EpisodeStart], other: Session | None) -> None:
        self._answer, self._episodes, self._other = answer, episodes, other
        self._turns = [0] * len(episodes)

    def act(self, requests: Sequence[Request]) -> list[Action]:
        said = [action.text for action in self._other.act(requests)] if self._other else [""] * len(requests)
        actions: list[Action] = []
        for request, text in zip(requests, said, strict=True):
            row = request.row
            answer = self._answer(self._episodes[row], self._turns[row], request.observation, text)
            actions.append(Action(text=answer))
            self._turns[row] += 1
        return actions

    def close(self) -> None:
        if self._other:
            self._other.close()


class RandomAnswers(TurnPolicy):
    """Answers drawn without looking, a fresh draw at every turn."""

    def __init__(self, draw: Callable[[int], str], *, name: str = "random") -> None:
        super().__init__(
            lambda start, turn, shown, said: draw(child_seed(0, *start.key, "answer", turn) % 2**31), name=name
        )


class NoisyPolicy(TurnPolicy):
    """A policy that gives a random answer instead of its own with chance ``noise`` at each turn.

    It stands in for a warm-started student where none is at hand: right most of the time, and not always in the same way.
    """

    def __init__(self, policy: Policy, draw: Callable[[int], str], *, noise: float) -> None:
        def answer(start: EpisodeStart, turn: int, shown: Observation, said: str) -> str:
            if child_rng(0, *start.key, "blend", turn).random() >= noise:
                return said
            return draw(child_seed(0, *start.key, "blend answer", turn) % 2**31)

        super().__init__(answer, name=f"{policy.name} with {noise:.0%} random answers", other=policy)


class PlanPolicy(TurnPolicy):
    """Rolls out many plans at once: the episodes of group g follow plan g // ``tasks``. ``reflex`` is the policy they bend."""

    def __init__(
        self, plans: Sequence[Plan], *, tasks: int, reflex: Policy | None = None, name: str = "search"
    ) -> None:
        def answer(start: EpisodeStart, turn: int, shown: Observation, said: str) -> str:
            return plans[start.group // tasks].answer(turn, shown, said)

        super().__init__(answer, name=name, other=reflex if any(plan.shape.bends for plan in plans) else None)
