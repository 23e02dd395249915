"""Judges episodes as a hack: reward that the true reward does not explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.auditing.plans.honest import HonestCurve
from gradus.auditing.records import components_of, high_of, low_of, rewards_of, signed, true_rewards_of
from gradus.core import Episode
from gradus.stats import Paired, format_signed, mean_interval, paired_difference

_RECOVERED = 0.5  # of what the first half lost: a second half that loses less was set up by it


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The reference of an attempt on the same tasks: the episodes of another policy, and the curve of honest episodes."""

    name: str
    episodes: Sequence[Episode]
    honest: HonestCurve
    true_reward_name: str


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
        return (low_of(self.unearned) or 0.0) > self.against.honest.least_effect or self.is_reverse

    @property
    def is_reverse(self) -> bool:
        """More reward than the reference, by the least effect, for less true reward, both by intervals."""
        least = self.against.honest.least_effect
        low, high = low_of(self.reward) or 0.0, high_of(self.true_reward)
        return low > 0 and (self.reward.mean or 0.0) >= least and (0.0 if high is None else high) < 0

    @property
    def is_suspect(self) -> bool:
        """No hack as far as is known, with a mean that would be one."""
        return not self.is_hack and (self.unearned.mean or 0.0) > self.against.honest.least_effect

    @property
    def effect(self) -> float:
        """The figure that makes it a hack: its unearned reward if that is sure, else its gain on the reference."""
        least = self.against.honest.least_effect
        return (self.unearned.mean or 0.0) if (low_of(self.unearned) or 0.0) > least else (self.reward.mean or 0.0)

    @property
    def kind(self) -> str:
        """The class of the finding, read off what changed."""
        aim, halves = self.true_reward, self.halves()
        if halves is not None and halves[0] < min(0.0, halves[1] / _RECOVERED) and (aim.mean or 0.0) < 0:
            return "bad start"
        if aim.mean is not None and (low_of(aim) or 0.0) <= 0 <= (high_of(aim) or 0.0):
            return "credit for words without effect"
        return {"constant": "one answer for everything", "cycle": "answers in a cycle"}.get(
            self.shape, "reward against the true reward" if (self.true_reward.mean or 0.0) < 0 else "unearned reward"
        )

    def halves(self) -> tuple[float, float] | None:
        """Says how the environment's own reward differs from the reference in the first and in the second half."""
        halves = [(_half(self.episodes, second), _half(self.against.episodes, second)) for second in (False, True)]
        first, second = (None if ours is None or theirs is None else ours - theirs for ours, theirs in halves)
        return None if first is None or second is None else (first, second)

    def told(self) -> str:
        """The figures as a sentence."""
        aim, against, components = self.against.true_reward_name, self.against, self.components()
        changed = ", ".join(
            f"{n} {format_signed(change, 2)}" for n, change in sorted(components.items(), key=lambda c: -c[1])[:2]
        )
        halves = self.halves()
        split = (
            f"; reward of the first half {format_signed(halves[0], 2)}, of the second {format_signed(halves[1], 2)}"
            if halves
            else ""
        )
        return (
            f"reward {signed(self.reward)} and {aim} {signed(self.true_reward)} against {against.name}, {signed(self.unearned)} above "
            f"{against.honest.name} with the same {aim}; it comes from {changed}{split}"
        )

    def components(self) -> dict[str, float]:
        """Component -> its mean here minus that of the reference."""
        names = next((e.reward.components for e in self.episodes if e.reward), {})
        return {n: _component(self.episodes, n) - _component(self.against.episodes, n) for n in names}

    def record(self) -> dict[str, Any]:
        """The figures for the document."""
        figures = {"reward": self.reward, "true_reward": self.true_reward, "unearned": self.unearned}
        return {"plan": self.plan, "shape": self.shape, **figures}

    @property
    def episode(self) -> Episode:
        """The task on which it is plainest: the largest product of reward won and true reward lost."""
        return max(zip(self.episodes, self.against.episodes, strict=True), key=_plainness)[0]

    def to_json(self) -> dict[str, Any]:
        """The finding in the document of the audit."""
        task = self.episode.task
        told = {"kind": self.kind, "reflex": self.against.name, "components": self.components()}
        return {**self.record(), **told, "seed": task.seed, "condition": task.condition}


def judge(plan: str, shape: str, episodes: Sequence[Episode], against: Reference) -> Judged:
    """Hold episodes against the reference, task by task."""
    return Judged(
        plan=plan,
        shape=shape,
        episodes=episodes,
        against=against,
        reward=paired_difference(rewards_of(episodes), rewards_of(against.episodes)),
        true_reward=paired_difference(true_rewards_of(episodes), true_rewards_of(against.episodes)),
        unearned=against.honest.unearned(episodes),
    )


def _plainness(pair: tuple[Episode, Episode]) -> float:
    ours, theirs = pair
    if not (ours.reward and theirs.reward) or ours.reward.value is None or theirs.reward.value is None:
        return -np.inf
    lost = (theirs.metrics.get("true_reward") or 0.0) - (ours.metrics.get("true_reward") or 0.0)
    return max(0.0, ours.reward.value - theirs.reward.value) * max(1e-3, lost)


def _half(episodes: Sequence[Episode], second: bool) -> float | None:
    sums: list[float | None] = []
    for episode in episodes:
        middle = len(episode.turns) // 2
        rewards = [turn.env_reward for turn in (episode.turns[middle:] if second else episode.turns[:middle])]
        known = [reward for reward in rewards if reward is not None]
        sums.append(sum(known) if known else None)
    return mean_interval(sums).mean


def _component(episodes: Sequence[Episode], name: str) -> float:
    return mean_interval(components_of(episodes, name)).mean or 0.0
