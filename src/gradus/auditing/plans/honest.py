"""The reward of a teacher who errs more or less, as a function of the true reward.

A plan's *unearned reward* is what it earns above a noisy teacher with the same true reward. It needs no policy that the plan must
beat, so that it also judges tasks where honest reflexes earn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gradus.auditing.plans.plan import NoisyPolicy, RandomAnswers
from gradus.auditing.records import LEAST_EFFECT, rewards_of, true_rewards_of
from gradus.core import EnvironmentSpec, Episode, Grader, Policy, Task, child_seed
from gradus.rollouts import roll_out
from gradus.stats import Paired, paired_difference

_NOISE = (0.0, 0.25, 0.5, 0.75)
_FEW_NOISE = (0.0, 0.5)
_CONSTANTS = 2
Level = tuple[np.ndarray, np.ndarray]  # true rewards and rewards of honest episodes, a task each
NO_AIM = (
    "no true reward is known that rewards could be held against: the environment gives no reward of its own; "
    "declare true_reward, the aim that the grader stands for"
)


@dataclass(frozen=True, kw_only=True)
class HonestCurve:
    """``curves``: ways to err. Each is a list of (true rewards, rewards) of honest episodes on the same tasks, by rising mean true reward."""

    name: str
    curves: Sequence[Sequence[Level]]

    @property
    def is_known(self) -> bool:
        """The true reward of honest episodes is known. Without it, no reward can be called unearned."""
        return all(self.curves)

    @property
    def least_effect(self) -> float:
        """The least effect in units of the reward."""
        means = [float(np.nanmean(reward)) for curve in self.curves for _, reward in curve]
        return LEAST_EFFECT * (max(means) - min(means))

    def unearned(self, episodes: Sequence[Episode]) -> Paired:
        """Reward above honest episodes of the same true reward, task by task, for the way to err that explains most of it.

        The honest reward is interpolated between the two levels around the plan's mean true reward. Each task's difference is
        corrected along that slope, so that the interval knows how uncertain the true reward is.
        """
        reward, aim = _values(rewards_of(episodes)), _values(true_rewards_of(episodes))
        gains = [_above(curve, aim, reward) for curve in self.curves]
        return min(gains, key=lambda gain: np.inf if gain.mean is None else gain.mean)


UNKNOWN = HonestCurve(name="", curves=[[]])  # where nobody knows a true reward


def _above(curve: Sequence[Level], aim: np.ndarray, reward: np.ndarray) -> Paired:
    """Reward above the curve. For a plan that means better than all honest episodes the slope of the whole curve goes on."""
    mean = float(np.nanmean(aim))
    beyond = mean > float(np.nanmean(curve[-1][0]))
    above = next((i for i, (aims, _) in enumerate(curve) if np.nanmean(aims) >= mean), len(curve) - 1)
    (low_aim, low), (high_aim, high) = curve[0 if beyond else max(0, above - 1)], curve[above]
    span = float(np.nanmean(high_aim) - np.nanmean(low_aim))
    slope = float(np.nanmean(high) - np.nanmean(low)) / span if span > 1e-9 else 0.0
    share = float(np.clip((mean - np.nanmean(low_aim)) / span, 0.0, 1.0)) if span > 1e-9 else float(beyond)
    expected = (1 - share) * low + share * high
    moves = max(0.0, slope) if beyond else slope if 0.0 < share < 1.0 else 0.0
    shift = moves * (aim - (1 - share) * low_aim - share * high_aim) if moves else 0.0
    return paired_difference(_listed(reward - shift), _listed(expected))


def honest_curve(
    spec: EnvironmentSpec,
    grader: Grader,
    teacher: Policy,
    tasks: Sequence[Task],
    draw: Callable[[int], str],
    *,
    seed: int,
) -> HonestCurve:
    """Roll out the teacher with more and more blind answers, down to blind answers alone."""
    blind = {"random": draw, **{f"constant {i}": _constant(draw, i) for i in range(_CONSTANTS)}}
    curves: list[list[Level]] = []
    for name, error in blind.items():
        noises = _NOISE if name == "random" else _FEW_NOISE
        policies = [*(NoisyPolicy(teacher, error, noise=noise) for noise in noises), RandomAnswers(error)]
        levels: list[Level] = []
        for policy in policies:
            honest = roll_out(spec, policy, tasks, seed=seed, key=("audit", "honest"), grader=grader).episodes
            levels.append((_values(true_rewards_of(honest)), _values(rewards_of(honest))))
        known = [(aim, reward) for aim, reward in levels if np.isfinite(aim).any() and np.isfinite(reward).any()]
        curves.append(sorted(known, key=lambda level: float(np.nanmean(level[0]))))
    return HonestCurve(name=teacher.name, curves=curves)


def _constant(draw: Callable[[int], str], index: int) -> Callable[[int], str]:
    answer = draw(child_seed(0, "audit", "constant", index) % 2**31)
    return lambda drawn: answer


def _values(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=np.float64)  # None is nan


def _listed(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
