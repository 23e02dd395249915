"""The checks of rewards of policies: separation, exploits and alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.judged import NO_AIM
from gradus.auditing.plans.panel import best_reflex
from gradus.auditing.records import (
    ENOUGH,
    AuditCheck,
    PanelEpisodes,
    high_of,
    is_above,
    is_own_aim,
    rewards_of,
    signed,
    true_rewards_of,
)
from gradus.core import child_seed
from gradus.core.findings import Status
from gradus.core.frozen_record import frozen_record
from gradus.stats import (
    Paired,
    format_number,
    paired_difference,
    spearman,
    spearman_within,
)

ALIGNMENT = 0.7  # rank correlation of mean reward and mean true reward over policies
_FEW = 30  # tasks below which a doubtful figure is left open
BLIND = ("silence", "random", "constant")  # policies that do not read the task
_RESAMPLES = 200
_NEGATIVE = -0.1  # within policies, reward and true reward may not run against each other
Values = npt.NDArray[np.float64]


@frozen_record
class Gain:
    """What one policy earns above another."""

    name: str
    reward: Paired
    true_reward: Paired

    @property
    def mean(self) -> float:
        """The mean gain; minus infinity if nothing is known."""
        return -np.inf if self.reward.mean is None else self.reward.mean

    @property
    def is_sure(self) -> bool:
        """The reward surely rises."""
        return is_above(self.reward, 0.0)

    def is_flat(self, least: float) -> bool:
        """The reward falls by the least effect, or rises by less although the true reward rises."""
        # The same reward on every task: the step is 0, though an interval without spread has no bounds.
        high = 0.0 if self.reward.ties == self.reward.n >= _FEW else high_of(self.reward)
        if self.is_sure or high is None:
            return False
        return high < -least or (high <= least and is_above(self.true_reward, 0.0))


def _gain(panel: PanelEpisodes, name: str, policy: str, baseline: str) -> Gain:
    """What a policy earns above a baseline, task by task."""
    return Gain(
        name=name,
        reward=paired_difference(panel.rewards(policy), panel.rewards(baseline)),
        true_reward=paired_difference(panel.true_rewards(policy), panel.true_rewards(baseline)),
    )


def _sentence(gains: Iterable[Gain]) -> str:
    """Gains with their intervals, as they stand in a sentence."""
    return ", ".join(f"{gain.name} {signed(gain.reward)}" for gain in gains)


def check_separation(panel: PanelEpisodes) -> AuditCheck:
    """Every step of the ladder must raise the reward.

    A step fails if its interval lies below 0 by more than the least effect, or below the least effect although the true reward rises.
    A step whose interval spans either is open, unless the true reward is the same on both sides.
    """
    steps = [_gain(panel, f"{better} - {worse}", better, worse) for worse, better in pairwise(panel.ladder)]
    if not steps:
        evidence = "a ladder of at least two policies is needed; declare a panel or a teacher"
        return AuditCheck(subject="separation", status="note", evidence=evidence)
    least = panel.least_effect()
    raised = [step for step in steps if step.is_sure]
    flat = [step for step in steps if step.is_flat(least)]
    # There can be no step in the reward if the true reward is the same on both sides.
    level = [step for step in steps if step.true_reward.ties == step.true_reward.n >= ENOUGH]
    unsure = [step for step in steps if step not in (*raised, *flat, *level)]
    status: Status = "note"
    if flat:
        status = "fail"
        evidence = f"{len(flat)} of {len(steps)} steps of skill do not raise the reward: {_sentence(flat)}"
    elif unsure:
        status = "open"
        evidence = f"not known for {len(unsure)} of {len(steps)} steps of skill: {_sentence(unsure)}"
    elif raised:
        status = "pass"
        lowest = min(raised, key=lambda step: step.mean)
        count = f"{len(raised)} of {len(steps)} steps {' < '.join(panel.ladder)} raise the reward"
        evidence = f"{count}; the least is {_sentence([lowest])}"
    else:
        same = f"{' and '.join(panel.ladder)} earn the same reward, and their true reward is the same"
        evidence = f"{same}; declare a teacher that does better"
    measured = {"least_effect": least, "steps": {step.name: step.reward for step in steps}}
    return AuditCheck(subject="separation", status=status, evidence=evidence, measured=measured)


def check_exploits(panel: PanelEpisodes) -> AuditCheck:
    """No degenerate policy that the panel declares may beat the best honest reflex by the least effect."""
    reflex = best_reflex(panel)
    tried = [_gain(panel, name, name, reflex) for name in panel.exploits if name != reflex]
    if not tried:
        evidence = "no exploits are declared; the search tries constants and cycles"
        return AuditCheck(subject="exploits", status="note", evidence=evidence)
    least = panel.least_effect()
    best = max(tried, key=lambda gain: gain.mean)
    sound = f"none of {len(tried)} degenerate policies beats {reflex}; the nearest is {_sentence([best])}"
    measured = {"least_effect": least, "exploits": {gain.name: gain.reward for gain in tried}}
    check = AuditCheck(subject="exploits", status="pass", evidence=sound, measured=measured)
    suspects = [gain for gain in tried if gain.mean >= least]
    winners = [gain for gain in suspects if gain.is_sure]
    if winners:
        count = f"{len(winners)} of {len(tried)} degenerate policies beat the best honest reflex, {reflex}"
        return replace(check, status="fail", evidence=f"{count}: {_sentence(winners)}")
    # Of few tasks those are doubtful that do not serve the true reward.
    unsure = [gain for gain in suspects if (gain.true_reward.mean or 0.0) <= 0]
    if unsure and min(gain.reward.n for gain in tried) < _FEW:
        evidence = f"it is not known whether degenerate policies beat {reflex}: {_sentence(unsure)}"
        return replace(check, status="open", evidence=evidence)
    return check


def check_alignment(panel: PanelEpisodes, true_reward: str) -> AuditCheck:
    """Rank correlation of reward and true reward: over the means of all policies, and from episode to episode within each."""
    # Skill that somebody declared is an aim too. Policies that do not read the task show none, and without any a pass would mean nothing.
    has_skill = not set(panel.ladder) <= {panel.ladder[0], *BLIND}
    if is_own_aim(panel.flat):
        evidence = (
            f"the reward is {true_reward} itself in every episode; declare a true reward of its own to hold it against"
        )
        if not panel.knows_aim:
            evidence = NO_AIM
        return AuditCheck(subject="alignment", status="note" if has_skill else "open", evidence=evidence)
    # Degenerate policies count too: their reward must be as low as their true reward.
    names = list(panel.episodes)
    rewards = _table(panel.rewards(name) for name in names)
    aims = _table(panel.true_rewards(name) for name in names)
    means = _row_means(aims)
    if len(names) < 3 or len(set(means[np.isfinite(means)].tolist())) < 2:
        evidence = f"at least 3 policies that differ in {true_reward} are needed; declare a true reward and a teacher"
        return AuditCheck(subject="alignment", status="open", evidence=evidence)
    across = _rank_correlation(rewards, aims)
    highest = _highest_correlation(rewards, aims)
    policies = [name for name in names for _ in panel.episodes[name]]
    within = spearman_within(rewards_of(panel.flat), true_rewards_of(panel.flat), policies)
    status = _alignment_status(across, highest, within, panel.tasks)
    evidence = f"the reward is the same for all policies while {true_reward} differs"
    if across is not None:
        correlation = f"rank correlation of reward and {true_reward} is {across:.2f} over {len(names)} policies"
        episodes = f"{format_number(within, 2)} from episode to episode within a policy"
        evidence = f"{correlation} ({ALIGNMENT} needed) and {episodes}"
    if status == "open":
        evidence += f"; {panel.tasks} tasks are too few to be sure"
    measured = {"across": across, "highest": highest, "within": within}
    return AuditCheck(subject="alignment", status=status, evidence=evidence, measured=measured)


def _alignment_status(across: float | None, highest: float, within: float | None, tasks: int) -> Status:
    """Decides by the correlation over policies, its upper end, and the one within policies."""
    if across is None:
        return "fail"
    if across >= ALIGNMENT and (within is None or within > 0):
        return "pass"
    # By the upper end: few tasks may hide a correlation that is there.
    may_be_aligned = highest >= ALIGNMENT and (within is None or within > _NEGATIVE)
    if may_be_aligned or tasks < _FEW:
        return "open"
    return "fail"


def _table(rows: Iterable[Sequence[float | None]]) -> Values:
    """Figures of (policies, tasks), nan if a value is missing."""
    return np.array(list(rows), dtype=np.float64)


def _row_means(values: Values) -> Values:
    """The mean of each policy, nan if it has no value."""
    counts = np.isfinite(values).sum(axis=1)
    return np.where(counts > 0, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)


def _rank_correlation(rewards: Values, aims: Values) -> float | None:
    """Rank correlation of the means of policies; equal up to rounding counts as equal."""
    reward_means = _row_means(rewards)
    aim_means = _row_means(aims)
    finite = np.isfinite(reward_means) & np.isfinite(aim_means)
    # Rounded, for means that are equal but for the order of their sums are ties.
    return spearman(reward_means[finite].round(12).tolist(), aim_means[finite].round(12).tolist())


def _highest_correlation(rewards: Values, aims: Values) -> float:
    """The upper end of what the correlation may be: its 97.5 % quantile over resampled tasks."""
    rng = np.random.default_rng(child_seed(0, "audit", "alignment"))
    tasks = rewards.shape[1]
    ranks: list[float] = []
    for _ in range(_RESAMPLES):
        drawn = cast("npt.NDArray[np.int64]", rng.integers(tasks, size=tasks))
        rank = _rank_correlation(rewards[:, drawn], aims[:, drawn])
        if rank is not None:  # some tasks alone may give all policies the same mean
            ranks.append(rank)
    return float(np.quantile(ranks or [-1.0], 0.975))
