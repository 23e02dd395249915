"""Three versions of the reward. v1 and v2 are the original's, holes included; v3 is ours and what training should use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gradus.core import Episode, Grader, GradingError, Reward, RewardTerm, frozen_record
from gradus_worlds.rhythm.persons import BELIEFS
from gradus_worlds.rhythm.tables import DAYS, METERS, SLOTS, STEPS, Array

BELIEF_COMPONENTS = frozenset({"belief_accuracy", "belief_skill"})
_HALF = STEPS // 2

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
_DAY_WEIGHTS = np.repeat(np.arange(1, len(DAYS) + 1), len(SLOTS))
_BELIEF_TURN_WEIGHTS = _DAY_WEIGHTS / _DAY_WEIGHTS.sum()


@frozen_record
class Week:
    """T steps that were played."""

    # (T,)
    rewards: Array
    # (T,) meters in a crash after each step.
    crashes: Array
    # (T + 1, 5), the first before any step.
    meters: Array
    # (T, 3), NaN in the turns that stated none.
    belief: Array
    # (3,), NaN if it is not known.
    truth: Array

    @property
    def held_belief(self) -> Array:
        """The last belief stated up to each turn, (T, 3), NaN before the first."""
        held = self.belief.copy()
        # A belief holds until another one is stated.
        for turn in range(1, len(held)):
            if np.isnan(held[turn]).any():
                held[turn] = held[turn - 1]
        return held


def read_week(episode: Episode) -> Week:
    """The played steps of an episode; GradingError if there are none. A last turn that the world never answered is left out."""
    # The data of a turn is what its policy saw, so what a turn led to stands in the next one.
    after = [*episode.turns[1:], episode.final]
    pairs = zip(episode.turns, after, strict=True)
    steps = [(turn, later.data) for turn, later in pairs if turn.env_reward is not None and later is not None]
    if not steps:
        raise GradingError("no step of this week was played; expected turns with a reward and meters, got none")
    unstated = [np.nan] * len(BELIEFS)
    beliefs = [turn.action_data.get("belief") or unstated for turn, _ in steps]
    start, _ = steps[0]
    crashes = [0.0, *(data["crashes"] for _, data in steps)]  # of the week so far
    truth = episode.outcome.get("beliefs", {})
    return Week(
        rewards=np.array([turn.env_reward for turn, _ in steps], dtype=float),
        crashes=np.diff(crashes),
        meters=np.array([start.data["meters"], *(data["meters"] for _, data in steps)]),
        belief=np.array(beliefs, dtype=float),
        truth=np.array([truth.get(name, np.nan) for name in BELIEFS]),
    )


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))


def _adaptation(week: Week) -> float:
    """Late-half minus early-half mean step reward, gated by late-half quality. It pays for a bad start; so did the original."""
    early = float(week.rewards[:_HALF].mean())
    late = float(week.rewards[_HALF:].mean())
    # The original gates the gain by the level, but not enough: a ruined start still earns.
    quality = _unit((late + 0.25) / 0.75) ** 1.5
    return quality * _unit(0.55 + (late - early) / 1.2)


def _belief_accuracy(week: Week) -> float:
    """1 - MAE of the last stated belief, 0 if none was stated."""
    last = week.held_belief[-1]
    if np.isnan(last).any():
        return 0.0
    return 1.0 - float(np.abs(last - week.truth).mean())


_EPISODE_COMPONENTS: dict[str, Callable[[Week], float]] = {
    "crash_free": lambda week: 1.0 - float(week.crashes.sum()) / (STEPS * len(METERS)),
    "progress": lambda week: float(week.meters[-1, METERS.index("progress")]),
    "connection": lambda week: float(week.meters[-1, METERS.index("connection")]),
    "adaptation": _adaptation,
    "efficiency": lambda week: _unit(float(week.rewards.mean()) + 0.3),
    "belief_accuracy": _belief_accuracy,
}


def _grade_at_end(name: str, weights: Mapping[str, float], episode: Episode) -> Reward:
    """A reward that is not a sum of turns: all of it stands at the last turn."""
    week = read_week(episode)
    if len(week.rewards) != STEPS:
        raise GradingError(
            f"{name} compares the halves of a whole week of {STEPS} steps, got {len(week.rewards)}; use v3"
        )
    components = {component: _EPISODE_COMPONENTS[component](week) for component in weights}
    earned = [RewardTerm(component=part, value=weights[part] * value) for part, value in components.items()]
    earlier = [()] * (len(episode.turns) - 1)
    value = sum(term.value for term in earned)
    return Reward(grader=name, value=value, components=components, terms=(*earlier, tuple(earned)))


def _v3_acts(week: Week) -> dict[str, Array]:
    """The unweighted share of each component that is earned by acting, per turn, (T,); over a week they add up to the component."""
    is_late = np.arange(len(week.rewards)) >= _HALF
    # Each step answers for its share of the lower reference.
    gain = week.rewards - WELLBEING[0] / STEPS
    late_gain = week.rewards - LATE[0] / (STEPS - _HALF)
    return {
        "wellbeing": gain / (WELLBEING[1] - WELLBEING[0]),
        "late_wellbeing": np.where(is_late, late_gain, 0.0) / (LATE[1] - LATE[0]),
        "crash_free": (len(METERS) - week.crashes) / (STEPS * len(METERS)),
    }


def _v3_beliefs(week: Week) -> Array:
    """The unweighted share of each belief in the belief skill, per turn, (T, 3); NaN where none was stated."""
    errors = (week.belief - week.truth) ** 2
    # As a coefficient of determination: 1 for the truth, 0 on average for the best constant.
    skill = (1.0 - errors / BELIEF_VARIANCE) / len(BELIEFS)
    return skill * _BELIEF_TURN_WEIGHTS[: len(skill), None]


def _grade_v3(name: str, weights: Mapping[str, float], episode: Episode) -> Reward:
    """A sum over turns. A week that was cut short earns for the turns it had."""
    week = read_week(episode)
    acts = _v3_acts(week)
    beliefs = _v3_beliefs(week)
    terms: list[tuple[RewardTerm, ...]] = [()] * len(episode.turns)
    for turn, skills in enumerate(beliefs.tolist()):
        spans = {span.name for span in episode.turns[turn].spans}
        # An answer that could not be understood has no spans; its turn earns as a whole.
        action = "action" if "action" in spans else None
        earned: list[RewardTerm] = []
        for part, share in acts.items():
            value = weights[part] * float(share[turn])
            earned.append(RewardTerm(component=part, value=value, span=action))
        if not np.isnan(skills).any():
            earned += _belief_terms(skills, weights["belief_skill"], spans)
        terms[turn] = tuple(earned)
    components = {part: float(share.sum()) for part, share in acts.items()}
    components["belief_skill"] = float(np.nansum(beliefs))
    value = sum(term.value for turn in terms for term in turn)
    return Reward(grader=name, value=value, components=components, terms=tuple(terms))


def _belief_terms(skills: list[float], weight: float, spans: set[str]) -> list[RewardTerm]:
    """A term for each belief, so that a right digit need not answer for the wrong one beside it."""
    terms: list[RewardTerm] = []
    for belief, skill in zip(BELIEFS, skills, strict=True):
        has_span = belief in spans
        span = belief if has_span else None
        # Immediate: nothing later depends on what was stated.
        terms.append(RewardTerm(component="belief_skill", value=weight * skill, span=span, immediate=has_span))
    return terms


_Grade = Callable[[str, Mapping[str, float], Episode], Reward]


def _grader(name: str, summary: str, weights: Mapping[str, float], grade: _Grade, *, per_turn: bool) -> Grader:
    def reward(episode: Episode) -> Reward:
        try:
            return grade(name, weights, episode)
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
