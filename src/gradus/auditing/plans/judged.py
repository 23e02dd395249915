"""Judges episodes as a hack: reward that the true reward does not explain.

*Unearned reward* is what a plan earns above a teacher who errs more or less and has the same true reward. It needs no policy that the plan
must beat, so that it also judges tasks where honest reflexes earn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.auditing.plans.plan import NoisyPolicy, RandomAnswers
from gradus.auditing.records import (
    LEAST_EFFECT,
    components_of,
    high_of,
    low_of,
    rewards_of,
    signed,
    true_rewards_of,
)
from gradus.core import EnvironmentSpec, Episode, Grader, Policy, Task, child_seed
from gradus.rollouts import roll_out
from gradus.stats import Paired, format_signed, mean_interval, paired_difference

_NOISE = (0.0, 0.25, 0.5, 0.75)
_FEW_NOISE = (0.0, 0.5)
_CONSTANTS = 2
Level = tuple[np.ndarray, np.ndarray]  # true rewards and rewards of honest episodes, a task each
NO_AIM = (
    "no true reward is known that rewards could be held against: the environment gives no reward of its own; "
    "declare true_reward, the aim that the grader stands for"
)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The standard for an attempt on the same tasks: the episodes of another policy, and a teacher who errs more or less.

    ``curves``: ways to err of ``teacher``. Each is a list of (true rewards, rewards) of honest episodes on the tasks, by rising mean true reward;
    one is empty if nobody knows a true reward.
    """

    name: str
    episodes: Sequence[Episode]
    curves: Sequence[Sequence[Level]]
    true_reward_name: str
    teacher: str = ""

    @property
    def is_known(self) -> bool:
        """The true reward of honest episodes is known. Without it, no reward can be called unearned."""
        return bool(self.curves) and all(self.curves)

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
        gains = [above_curve(curve, aim, reward) for curve in self.curves]
        return min(gains, key=lambda gain: np.inf if gain.mean is None else gain.mean)


def above_curve(curve: Sequence[Level], aim: np.ndarray, reward: np.ndarray) -> Paired:
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


def honest_curves(
    spec: EnvironmentSpec,
    grader: Grader,
    teacher: Policy,
    tasks: Sequence[Task],
    draw: Callable[[int], str],
    *,
    seed: int,
) -> list[list[Level]]:
    """Roll out the teacher with more and more blind answers, down to blind answers alone."""
    constants = [draw(child_seed(0, "audit", "constant", i) % 2**31) for i in range(_CONSTANTS)]
    errors = [(draw, _NOISE), *((lambda drawn, answer=answer: answer, _FEW_NOISE) for answer in constants)]
    curves: list[list[Level]] = []
    for error, noises in errors:
        levels: list[Level] = []
        for policy in (*(NoisyPolicy(teacher, error, noise=noise) for noise in noises), RandomAnswers(error)):
            honest = roll_out(spec, policy, tasks, seed=seed, key=("audit", "honest"), grader=grader).episodes
            levels.append((_values(true_rewards_of(honest)), _values(rewards_of(honest))))
        known = [(aim, reward) for aim, reward in levels if np.isfinite(aim).any() and np.isfinite(reward).any()]
        curves.append(sorted(known, key=lambda level: float(np.nanmean(level[0]))))
    return curves


def _values(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=np.float64)  # None is nan


def _listed(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An attempt on the tasks of the audit: reward and true reward against the reference, and the unearned reward."""

    plan: str
    shape: str
    episodes: Sequence[Episode]
    against: Reference
    reward: Paired
    true_reward: Paired
    unearned: Paired

    @property
    def is_hack(self) -> bool:
        """Unearned reward above the least effect; or more reward than the reference, by the least effect, for less true reward."""
        return (low_of(self.unearned) or 0.0) > self.against.least_effect or self.is_reverse

    @property
    def is_reverse(self) -> bool:
        """More reward than the reference, by the least effect, for less true reward, both by intervals."""
        low, high = low_of(self.reward) or 0.0, high_of(self.true_reward)
        more = low > 0 and (self.reward.mean or 0.0) >= self.against.least_effect
        return more and (0.0 if high is None else high) < 0

    @property
    def is_suspect(self) -> bool:
        """No hack as far as is known, with a mean that would be one."""
        return not self.is_hack and (self.unearned.mean or 0.0) > self.against.least_effect

    @property
    def kind(self) -> str:
        """The class of the finding, read off the plan and what changed."""
        aim = self.true_reward
        if self.shape in _KINDS:
            return _KINDS[self.shape]
        if aim.mean is not None and (low_of(aim) or 0.0) <= 0 <= (high_of(aim) or 0.0):
            return "credit for words without effect"
        return "reward against the true reward" if (aim.mean or 0.0) < 0 else "unearned reward"

    def told(self) -> str:
        """The figures as a sentence."""
        aim, against = self.against.true_reward_name, self.against
        most = sorted(self.components().items(), key=lambda each: -each[1])[:2]
        changed = ", ".join(f"{name} {format_signed(change, 2)}" for name, change in most)
        return (
            f"reward {signed(self.reward)} and {aim} {signed(self.true_reward)} against {against.name}, {signed(self.unearned)} above "
            f"{against.teacher} with the same {aim}; it comes from {changed}"
        )

    def components(self) -> dict[str, float]:
        """Component -> its mean here minus that of the reference."""
        names = next((e.reward.components for e in self.episodes if e.reward), {})
        ours, theirs = ({n: mean_interval(components_of(e, n)).mean or 0.0 for n in names} for e in self._both)
        return {name: ours[name] - theirs[name] for name in names}

    @property
    def _both(self) -> tuple[Sequence[Episode], Sequence[Episode]]:
        return self.episodes, self.against.episodes

    @property
    def episode(self) -> Episode:
        """The task on which it is plainest: the most reward won against the reference."""
        ours, theirs = ([reward or 0.0 for reward in rewards_of(episodes)] for episodes in self._both)
        return self.episodes[int(np.argmax(np.subtract(ours, theirs)))]

    def record(self) -> dict[str, Any]:
        """The figures for the document."""
        figures = {"reward": self.reward, "true_reward": self.true_reward, "unearned": self.unearned}
        return {"plan": self.plan, "shape": self.shape, **figures}

    def to_json(self) -> dict[str, Any]:
        """The finding in the document of the audit."""
        task = self.episode.task
        told = {"kind": self.kind, "reflex": self.against.name, "components": self.components()}
        return {**self.record(), **told, "seed": task.seed, "condition": task.condition}


_KINDS = {"constant": "one answer for everything", "cycle": "answers in a cycle"}


def judge(plan: str, shape: str, episodes: Sequence[Episode], against: Reference) -> Judged:
    """Hold episodes against the reference, task by task."""
    return Judged(
        plan=plan,
        shape=shape,
        episodes=episodes,
        against=against,
        reward=paired_difference(rewards_of(episodes), rewards_of(against.episodes)),
        true_reward=paired_difference(true_rewards_of(episodes), true_rewards_of(against.episodes)),
        unearned=against.unearned(episodes),
    )
