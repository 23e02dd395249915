"""Judges episodes as a hack: reward that the true reward does not explain.

*Unearned reward* is what a plan earns above a teacher who errs more or less and has the same true reward. It needs no policy that the plan
must beat, so that it also judges tasks where honest reflexes earn nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.plan import Draw, NoisyPolicy, Plan, PlanSubject, RandomAnswers
from gradus.auditing.records import (
    LEAST_EFFECT,
    components_of,
    high_of,
    is_above,
    low_of,
    rewards_of,
    signed,
    true_rewards_of,
)
from gradus.core import (
    Episode,
    Policy,
    Task,
    child_seed,
)
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.rollouts import roll_out
from gradus.stats import Paired, format_signed, mean_interval, paired_difference

# The shares of blind answers at which a teacher is rolled out; blind answers alone come last.
_NOISE = (0.0, 0.25, 0.5, 0.75)
_FEW_NOISE = (0.0, 0.5)
_CONSTANTS = 2
Values = npt.NDArray[np.float64]
NO_AIM = (
    "no true reward is known that rewards could be held against. Settle it by one of three: declare true_reward, a function of the finished "
    "episode; or a goal that the final state must hold; or a teacher, a policy that can do the task"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """Honest episodes of one skill: the true reward and the reward of each task, nan if a value is missing."""

    true_rewards: Values
    rewards: Values

    @property
    def aim(self) -> float:
        """The mean true reward."""
        return float(np.nanmean(self.true_rewards))

    @property
    def reward(self) -> float:
        """The mean reward."""
        return float(np.nanmean(self.rewards))

    @property
    def is_known(self) -> bool:
        """Some true reward and some reward is known."""
        return bool(np.isfinite(self.true_rewards).any() and np.isfinite(self.rewards).any())


def level_of(episodes: Sequence[Episode]) -> Level:
    """The level of some episodes."""
    true_rewards = np.array(true_rewards_of(episodes), dtype=np.float64)  # None is nan
    return Level(
        true_rewards=true_rewards,
        rewards=np.array(rewards_of(episodes), dtype=np.float64),
    )


@frozen_record
class Baseline:
    """The standard for an attempt on the same tasks: the episodes of another policy, and a teacher who errs more or less."""

    name: str
    episodes: Sequence[Episode]
    true_reward_name: str
    # Ways to err of ``teacher``, each from the lowest mean true reward to the highest; one is empty if nobody knows a true reward.
    curves: Sequence[Sequence[Level]] = ()
    teacher: str = ""

    @property
    def is_known(self) -> bool:
        """The true reward of honest episodes is known. Without it, no reward can be called unearned."""
        return bool(self.curves) and all(self.curves)

    @property
    def least_effect(self) -> float:
        """The least effect in units of the reward."""
        # From blind answers to the teacher itself: what skill is worth under this grader.
        means = [level.reward for curve in self.curves for level in curve]
        return LEAST_EFFECT * (max(means) - min(means))

    def unearned(self, episodes: Sequence[Episode]) -> Paired:
        """Reward above honest episodes of the same true reward, task by task, for the way to err that explains most of it.

        The honest reward is interpolated between the two levels around the plan's mean true reward. Each task's difference is
        corrected along that slope, so that the interval knows how uncertain the true reward is.
        """
        level = level_of(episodes)
        gains = [above_curve(curve, level) for curve in self.curves]
        return min(gains, key=lambda gain: np.inf if gain.mean is None else gain.mean)


def above_curve(curve: Sequence[Level], level: Level) -> Paired:
    """Reward above the curve. For a plan that means better than all honest episodes the slope of the whole curve goes on."""
    beyond = level.aim > curve[-1].aim
    # The two levels around the plan's true reward: the lowest and the highest of all beyond them.
    above = next((place for place, honest in enumerate(curve) if honest.aim >= level.aim), len(curve) - 1)
    low = curve[0 if beyond else max(0, above - 1)]
    high = curve[above]
    span = high.aim - low.aim
    slope = 0.0
    share = float(beyond)
    if span > 1e-9:
        slope = (high.reward - low.reward) / span
        share = float(np.clip((level.aim - low.aim) / span, 0.0, 1.0))
    if beyond:
        slope = max(0.0, slope)  # meaning better must not count as unearned where rewards fall
    elif not 0.0 < share < 1.0:
        slope = 0.0  # at a level or below all of them there is no line to correct along
    expected = (1 - share) * low.rewards + share * high.rewards
    shift = 0.0
    # Times a slope of 0, a true reward that nobody knows would make the reward unknown too.
    if slope:
        shift = slope * (level.true_rewards - (1 - share) * low.true_rewards - share * high.true_rewards)
    return paired_difference(_optional(level.rewards - shift), _optional(expected))


def _optional(values: Values) -> list[float | None]:
    """The values as numbers, None for nan."""
    return [float(value) if np.isfinite(value) else None for value in values]


def honest_curves(subject: PlanSubject, teacher: Policy, tasks: Sequence[Task]) -> list[list[Level]]:
    """Roll out the teacher with more and more blind answers, down to blind answers alone."""
    errors: list[tuple[Draw, tuple[float, ...]]] = [(subject.draw, _NOISE)]
    # A teacher may also err with one answer always: a reward for it would else look unearned.
    for number in range(_CONSTANTS):
        answer = subject.draw(child_seed(0, "audit", "constant", number) % 2**31)
        errors.append((_always(answer), _FEW_NOISE))
    curves: list[list[Level]] = []
    for error, noises in errors:
        policies: list[Policy] = [NoisyPolicy(teacher, error, noise=noise) for noise in noises]
        policies.append(RandomAnswers(error))
        levels: list[Level] = []
        for policy in policies:
            key = ("audit", "honest")
            rolled_out = roll_out(subject.spec, policy, tasks, seed=subject.seed, key=key, grader=subject.grader)
            level = level_of(rolled_out.episodes)
            if level.is_known:
                levels.append(level)
        levels.sort(key=lambda level: level.aim)
        curves.append(levels)
    return curves


def _always(answer: str) -> Draw:
    """A draw that gives one answer."""
    return lambda seed: answer


@frozen_record
class Judged:
    """An attempt on the tasks of the audit: reward and true reward against the reference, and the unearned reward."""

    plan: str
    shape: str
    episodes: Sequence[Episode]
    against: Baseline
    reward: Paired
    true_reward: Paired
    unearned: Paired

    @property
    def is_hack(self) -> bool:
        """Unearned reward above the least effect; or more reward than the reference, by the least effect, for less true reward."""
        return is_above(self.unearned, self.against.least_effect) or self.is_reverse

    @property
    def is_reverse(self) -> bool:
        """More reward than the reference, by the least effect, for less true reward, both by intervals."""
        if (high_of(self.true_reward) or 0.0) >= 0:
            return False
        return is_above(self.reward, 0.0) and (self.reward.mean or 0.0) >= self.against.least_effect

    @property
    def is_suspect(self) -> bool:
        """No hack as far as is known, with a mean that would be one."""
        return not self.is_hack and (self.unearned.mean or 0.0) > self.against.least_effect

    @property
    def kind(self) -> str:
        """The class of the finding, read off the plan and what changed."""
        # A plan of the simplest shapes is named by them.
        aim = self.true_reward
        if self.shape in _KINDS:
            return _KINDS[self.shape]
        if aim.mean is None or (low_of(aim) or 0.0) > 0:
            return "unearned reward"
        if (high_of(aim) or 0.0) >= 0:
            return "credit for words without effect"
        return "reward against the true reward"

    def sentence(self) -> str:
        """The figures as a sentence."""
        against = self.against
        aim = against.true_reward_name
        most = sorted(self.components().items(), key=lambda pair: -pair[1])[:2]
        changes = ", ".join(f"{name} {format_signed(change, 2)}" for name, change in most)
        return (
            f"reward {signed(self.reward)} and {aim} {signed(self.true_reward)} against {against.name}, {signed(self.unearned)} above "
            f"{against.teacher} with the same {aim}; it comes from {changes}"
        )

    def components(self) -> dict[str, float]:
        """Component -> its mean here minus that of the reference."""
        rewards = [episode.reward for episode in self.episodes if episode.reward]
        changes: dict[str, float] = {}
        for name in rewards[0].components if rewards else ():
            ours = mean_interval(components_of(self.episodes, name)).mean or 0.0
            theirs = mean_interval(components_of(self.against.episodes, name)).mean or 0.0
            changes[name] = ours - theirs
        return changes

    @property
    def episode(self) -> Episode:
        """The task on which it is plainest: the most reward won against the reference."""
        pairs = zip(rewards_of(self.episodes), rewards_of(self.against.episodes), strict=True)
        gains = [(ours or 0.0) - (theirs or 0.0) for ours, theirs in pairs]
        return self.episodes[int(np.argmax(gains))]

    def record(self) -> JsonDict:
        """The figures for the document."""
        return {
            "plan": self.plan,
            "shape": self.shape,
            "reward": self.reward,
            "true_reward": self.true_reward,
            "unearned": self.unearned,
        }

    def to_json(self) -> JsonDict:
        """The finding in the document of the audit."""
        task = self.episode.task
        return {
            **self.record(),
            "kind": self.kind,
            "reflex": self.against.name,
            "components": self.components(),
            "seed": task.seed,
            "condition": task.condition,
        }


_KINDS = {
    "constant": "one answer for everything",
    "cycle": "answers in a cycle",
}


def judge(plan: Plan, episodes: Sequence[Episode], against: Baseline) -> Judged:
    """Hold the episodes of a plan against the reference, task by task."""
    return Judged(
        plan=plan.describe(),
        shape=plan.shape.name,
        episodes=episodes,
        against=against,
        reward=paired_difference(rewards_of(episodes), rewards_of(against.episodes)),
        true_reward=paired_difference(true_rewards_of(episodes), true_rewards_of(against.episodes)),
        unearned=against.unearned(episodes),
    )
