"""Reads a stored episode as arrays, for graders, metrics and views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.core import Episode, GradingError
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import DAYS, METERS, SLOTS, STEPS

Array = NDArray[np.float64]
SLOTS_A_DAY = len(SLOTS)


@dataclass(frozen=True, kw_only=True)
class Week:
    """T steps that were played. ``belief`` is NaN in the turns that stated none; ``truth`` is NaN if it is not known."""

    rewards: Array  # (T,)
    crashes: Array  # (T,) meters in a crash after each step
    meters: Array  # (T + 1, 5)
    belief: Array  # (T, 3)
    truth: Array  # (3,)

    @property
    def finished(self) -> bool:
        """All 28 steps were played."""
        return len(self.rewards) == STEPS

    @property
    def squared_errors(self) -> Array:
        """Squared error of each belief stated at each turn, (T, 3), NaN where none was."""
        return (self.belief - self.truth) ** 2

    @property
    def held_belief(self) -> Array:
        """The last belief stated up to each turn, (T, 3), NaN before the first."""
        held = self.belief.copy()
        for turn in np.flatnonzero(np.isnan(held).any(axis=1)).tolist():
            if turn:
                held[turn] = held[turn - 1]
        return held

    @property
    def belief_mae_by_day(self) -> list[float | None]:
        """Mean absolute error of the belief held at the end of each day, (7,), None if none was stated or played."""
        errors = np.abs(self.held_belief - self.truth).mean(axis=1)
        ends = [(day + 1) * SLOTS_A_DAY - 1 for day in range(len(DAYS))]
        return [float(errors[end]) if end < len(errors) and np.isfinite(errors[end]) else None for end in ends]


def read_week(episode: Episode) -> Week:
    """The played steps of an episode. A last turn that the world never answered is left out.

    Raises GradingError if no step was played or the records are not Rhythm's.
    """
    seen: list[Mapping[str, Any]] = [turn.data for turn in episode.turns[1:]]  # what each turn led to
    seen.append(episode.final.data if episode.final is not None else {})
    steps = [
        (turn, data)
        for turn, data in zip(episode.turns, seen, strict=False)
        if turn.env_reward is not None and "meters" in data
    ]
    if not steps:
        raise GradingError("no step of this week was played; expected turns with a reward and meters, got none")
    try:
        played, after = [turn for turn, _ in steps], [data for _, data in steps]
        crashes = [0, *(data["crashes"] for data in after)]
        beliefs = [turn.action_data.get("belief") or [np.nan] * len(BELIEFS) for turn in played]
        truth = episode.outcome.get("beliefs") or {}
        return Week(
            rewards=np.array([turn.env_reward for turn in played], dtype=float),
            crashes=np.diff(np.array(crashes, dtype=float)),
            meters=np.array([played[0].data["meters"], *(data["meters"] for data in after)]).reshape(-1, len(METERS)),
            belief=np.array(beliefs, dtype=float).reshape(-1, len(BELIEFS)),
            truth=np.array([truth.get(name, np.nan) for name in BELIEFS], dtype=float),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GradingError(f"this is not a Rhythm episode: {type(error).__name__}: {error}") from error
