"""Three versions of the reward. v1 and v2 are the original's, holes included; v3 is ours and what training should use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.core import Episode, Grader, GradingError, Reward, RewardTerm
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import DAYS, METERS, SLOTS, STEPS

Array = NDArray[np.float64]

BELIEF_COMPONENTS = frozenset({"belief_accuracy", "belief_skill"})
_HALF = STEPS // 2
_METER_STEPS = STEPS * len(METERS)

V1_WEIGHTS = {"crash_free": 0.20, "progress": 0.25, "connection": 0.15, "adaptation": 0.30, "efficiency": 0.10}
V2_WEIGHTS = {
    "crash_free": 0.15,
    "progress": 0.20,
    "connection": 0.10,
    "adaptation": 0.25,
    "efficiency": 0.10,
    "belief_accuracy": 0.20,
}
V3_WEIGHTS = {"wellbeing": 0.50, "late_wellbeing": 0.10, "crash_free": 0.10, "belief_skill": 0.30}

# v3's fixed references, in episode reward: about what random play and a planner who knows the person get.
WELLBEING = (3.0, 15.0)
LATE = (0.5, 6.5)
# Mean squared error of the best constant over the persons of training, per belief target.
BELIEF_VARIANCE = 0.05
# Knowing on Tuesday is worth something, still knowing on Sunday more: day d (1 to 7) weighs d / 28, its slots share it.
_BELIEF_TURN_WEIGHTS: Array = np.repeat(np.arange(1, len(DAYS) + 1), len(SLOTS)) / (sum(range(1, 8)) * len(SLOTS))


@dataclass(frozen=True, kw_only=True)
class Week:
    """T steps that were played. ``belief`` is NaN in the turns that stated none; ``truth`` is NaN if it is not known."""

    rewards: Array  # (T,)
    crashes: Array  # (T,) meters in a crash after each step
    meters: Array  # (T + 1, 5)
    belief: Array  # (T, 3)
    truth: Array  # (3,)

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
        ends = [(day + 1) * len(SLOTS) - 1 for day in range(len(DAYS))]
        return [float(errors[end]) if end < len(errors) and np.isfinite(errors[end]) else None for end in ends]


def read_week(episode: Episode) -> Week:
    """The played steps of an episode; GradingError if there are none. A last turn that the world never answered is left out."""
    seen: list[Mapping[str, Any]] = [turn.data for turn in episode.turns[1:]]  # what each turn led to
    seen.append(episode.final.data if episode.final is not None else {})
    steps = [
        (turn, data)
        for turn, data in zip(episode.turns, seen, strict=False)
        if turn.env_reward is not None and "meters" in data
    ]
    if not steps:
        raise GradingError("no step of this week was played; expected turns with a reward and meters, got none")
    played, after = [turn for turn, _ in steps], [data for _, data in steps]
    beliefs = [turn.action_data.get("belief") or [np.nan] * len(BELIEFS) for turn in played]
    truth = episode.outcome.get("beliefs") or {}
    return Week(
        rewards=np.array([turn.env_reward for turn in played], dtype=float),
        crashes=np.diff([0.0, *(data["crashes"] for data in after)]),
        meters=np.array([played[0].data["meters"], *(data["meters"] for data in after)]),
        belief=np.array(beliefs, dtype=float),
        truth=np.array([truth.get(name, np.nan) for name in BELIEFS]),
    )


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))


def _adaptation(week: Week) -> float:
    """Late-half minus early-half mean step reward, gated by late-half quality. It pays for a bad start; so did the original."""
    early, late = float(week.rewards[:_HALF].mean()), float(week.rewards[_HALF:].mean())
    return _unit((late + 0.25) / 0.75) ** 1.5 * _unit(0.55 + (late - early) / 1.2)


def _belief_accuracy(week: Week) -> float:
    """1 - MAE of the last stated belief, 0 if none was stated."""
    last = week.held_belief[-1]
    return 0.0 if np.isnan(last).any() else 1.0 - float(np.abs(last - week.truth).mean())


_EPISODE_COMPONENTS: dict[str, Callable[[Week], float]] = {
    "crash_free": lambda week: 1.0 - float(week.crashes.sum()) / _METER_STEPS,
    "progress": lambda week: float(week.meters[-1, METERS.index("progress")]),
    "connection": lambda week: float(week.meters[-1, METERS.index("connection")]),
    "adaptation": _adaptation,
    "efficiency": lambda week: _unit(float(week.rewards.mean()) + 0.3),
    "belief_accuracy": _belief_accuracy,
}


def _spans(episode: Episode, turn: int) -> set[str]:
    return {span.name for span in episode.turns[turn].spans}


def _grade_at_end(name: str, weights: Mapping[str, float], episode: Episode) -> Reward:
    """A reward that is not a sum of turns: all of it stands at the last turn."""
    week = read_week(episode)
    if len(week.rewards) != STEPS:
        raise GradingError(
            f"{name} compares the halves of a whole week of {STEPS} steps, got {len(week.rewards)}; use v3"
        )
    if "belief_accuracy" in weights and np.isnan(week.truth).any():
        raise GradingError("the outcome holds no true beliefs; expected outcome['beliefs'] from the environment")
    components = {component: _EPISODE_COMPONENTS[component](week) for component in weights}
    earned = tuple(RewardTerm(component=c, value=weights[c] * value) for c, value in components.items())
    terms = ((),) * (len(episode.turns) - 1) + (earned,)
    return Reward(grader=name, value=sum(term.value for term in earned), components=components, terms=terms)


def _v3_acts(week: Week) -> dict[str, Array]:
    """The unweighted share of each component that is earned by acting, per turn, (T,); over a week they add up to the component."""
    late = np.arange(len(week.rewards)) >= _HALF
    return {
        "wellbeing": (week.rewards - WELLBEING[0] / STEPS) / (WELLBEING[1] - WELLBEING[0]),
        "late_wellbeing": np.where(late, week.rewards - LATE[0] / (STEPS - _HALF), 0.0) / (LATE[1] - LATE[0]),
        "crash_free": (len(METERS) - week.crashes) / _METER_STEPS,
    }


def _v3_beliefs(week: Week) -> Array:
    """The unweighted share of each belief in the belief skill, per turn, (T, 3); NaN where none was stated."""
    turns = len(week.rewards)
    skill = (1.0 - week.squared_errors / BELIEF_VARIANCE) / len(BELIEFS)
    return skill * _BELIEF_TURN_WEIGHTS[:turns, None]


def _grade_v3(name: str, weights: Mapping[str, float], episode: Episode) -> Reward:
    """A sum over turns. A week that was cut short earns for the turns it had.

    Each belief has a term of its own, so that a right digit need not answer for the wrong one beside it.
    """
    week = read_week(episode)
    if np.isnan(week.truth).any():
        raise GradingError("the outcome holds no true beliefs; expected outcome['beliefs'] from the environment")
    acts, beliefs = _v3_acts(week), _v3_beliefs(week)
    terms: list[tuple[RewardTerm, ...]] = []
    for turn in range(len(episode.turns)):
        if turn >= len(week.rewards):
            terms.append(())
            continue
        spans = _spans(episode, turn)
        action = "action" if "action" in spans else None
        earned = [RewardTerm(component=c, value=weights[c] * float(acts[c][turn]), span=action) for c in acts]
        if not np.isnan(beliefs[turn]).any():
            earned += [
                RewardTerm(
                    component="belief_skill",
                    value=weights["belief_skill"] * share,
                    span=belief if belief in spans else None,
                    immediate=belief in spans,
                )
                for belief, share in zip(BELIEFS, beliefs[turn].tolist(), strict=True)
            ]
        terms.append(tuple(earned))
    components = {component: float(share.sum()) for component, share in acts.items()}
    components["belief_skill"] = float(np.nansum(beliefs))
    value = sum(term.value for turn in terms for term in turn)
    return Reward(grader=name, value=value, components=components, terms=tuple(terms))


_OneReward = Callable[[str, Mapping[str, float], Episode], Reward]


def _grader(name: str, summary: str, weights: Mapping[str, float], one: _OneReward, *, per_turn: bool) -> Grader:
    def reward(episode: Episode) -> Reward:
        try:
            return one(name, weights, episode)
        except GradingError as error:
            return Reward(grader=name, value=None, error=str(error))

    return Grader(
        name=name,
        summary=summary,
        weights=weights,
        compute=lambda episodes: [reward(episode) for episode in episodes],
        per_turn=per_turn,
        range=None if per_turn else (0.0, 1.0),
    )


GRADERS: dict[str, Grader] = {
    "v1": _grader("v1", "the original's first: no reward for inference", V1_WEIGHTS, _grade_at_end, per_turn=False),
    "v2": _grader("v2", "the original's second: rewards any stated belief", V2_WEIGHTS, _grade_at_end, per_turn=False),
    "v3": _grader("v3", "wellbeing and belief skill, turn by turn", V3_WEIGHTS, _grade_v3, per_turn=True),
}
