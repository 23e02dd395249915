"""The checks of rewards of policies: separation, exploits, free credit, alignment, and the signal for GRPO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gradus.auditing.plans.judged import NO_AIM
from gradus.auditing.plans.panel import best_reflex
from gradus.auditing.plans.plan import Draw, NoisyPolicy, RandomAnswers
from gradus.auditing.records import (
    ENOUGH,
    AuditCheck,
    PanelEpisodes,
    components_of,
    high_of,
    is_above,
    signed,
)
from gradus.core import EnvironmentSpec, Grader, Policy, child_seed
from gradus.core.findings import Status
from gradus.rollouts import roll_out
from gradus.stats import (
    Paired,
    format_number,
    mean_interval,
    paired_difference,
    spearman,
    spearman_within,
)

FREE = 0.5  # a constant answer may earn at most half of what skill earns above chance
ALIGNMENT = 0.7  # rank correlation of mean reward and mean true reward over policies
_FEW = 30  # tasks below which a doubtful figure is left open
BLIND = ("silence", "random", "constant")  # policies that do not read the task
_RESAMPLES = 200
_NEGATIVE = -0.1  # within policies, reward and true reward may not run against each other
SIZES = (4, 8, 16)  # of groups, for which the signal is forecast
_MEMBERS = 16
_ORDERS = 8  # in which the members of a group are cut into smaller groups
_ZERO_VARIANCE = 0.5  # doctor warns above this share of zero-variance groups
# Of a stand-in. The first that has variance is forecast: a student may be as weak as the last.
_NOISES = (0.3, 0.6, 0.9)
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What one policy earns above another."""

    name: str
    reward: Paired
    true_reward: Paired

    @property
    def mean(self) -> float:
        """The mean gain; minus infinity if nothing is known."""
        if self.reward.mean is None:
            return -np.inf
        return self.reward.mean

    @property
    def is_sure(self) -> bool:
        """The reward surely rises."""
        return is_above(self.reward, 0.0)

    @property
    def is_level(self) -> bool:
        """The true reward is the same on both sides, so that there can be no step in the reward."""
        return self.true_reward.ties == self.true_reward.n >= ENOUGH

    def is_flat(self, least: float) -> bool:
        """The reward falls by the least effect, or rises by less although the true reward rises."""
        # The same reward on every task: the step is 0.
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
    unsure = [step for step in steps if step not in (*raised, *flat) and not step.is_level]
    measured = {
        "least_effect": least,
        "steps": {step.name: step.reward for step in steps},
    }
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
    return AuditCheck(
        subject="separation",
        status=status,
        evidence=evidence,
        measured=measured,
    )


def check_exploits(panel: PanelEpisodes) -> AuditCheck:
    """No degenerate policy that the panel declares may beat the best honest reflex by the least effect."""
    reflex = best_reflex(panel)
    tried = [_gain(panel, name, name, reflex) for name in panel.exploits if name != reflex]
    if not tried:
        evidence = "no exploits are declared; the search tries constants and cycles"
        return AuditCheck(subject="exploits", status="note", evidence=evidence)
    least = panel.least_effect()
    best = max(tried, key=lambda gain: gain.mean)
    nearest = f"the nearest is {_sentence([best])}"
    check = AuditCheck(
        subject="exploits",
        status="pass",
        evidence=f"none of {len(tried)} degenerate policies beats {reflex}; {nearest}",
        measured={
            "least_effect": least,
            "exploits": {gain.name: gain.reward for gain in tried},
        },
    )
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


def check_free_credit(
    panel: PanelEpisodes,
    grader: Grader,
    constants: Mapping[str, tuple[float, str]],
) -> AuditCheck:
    """Compares the best constant answer with the best policy, component by component, both above chance.

    ``constants``: component -> the most that any constant answer earned of it, and which answer. Chance is what the lowest step of the
    ladder earns. The whole is weighted: sum of what constants earn over sum of what skill earns.
    """
    skilled = [name for name in (*panel.ladder, *panel.reflexes) if name not in panel.exploits]
    if set(skilled) <= {panel.ladder[0], *BLIND}:
        evidence = "nobody is known to do better than blindly here; declare a teacher or a panel"
        return AuditCheck(subject="free credit", status="note", evidence=evidence)
    credits = _credits(panel, grader, constants, skilled)
    if not credits:
        evidence = (
            "no constant answer was tried (a budget of 0), or the reward of none has a component that the grader names "
            f"({', '.join(grader.weights)}); name them in its weights"
        )
        return AuditCheck(subject="free credit", status="open", evidence=evidence)
    measured: dict[str, Any] = {"components": {name: credit.record() for name, credit in credits.items()}}
    earned = possible = 0.0
    for credit in credits.values():
        earned += abs(credit.weight) * credit.gain
        possible += abs(credit.weight) * credit.room
    if possible < 1e-9:
        evidence = "no policy earns more than blind answers do: every component is free for the asking"
        return AuditCheck(subject="free credit", status="fail", evidence=evidence, measured=measured)
    share = earned / possible
    status: Status = "pass"
    bound = "of at most"
    if share > FREE:
        status, bound = "fail", "more than"
    if share > FREE and panel.tasks < _FEW:
        status = "open"
    parts = [f"{name} {credit}" for name, credit in credits.items() if credit.free is not None]
    allowed = f"{bound} {FREE:.0%} allowed ({', '.join(parts)})"
    evidence = f"constant answers earn {share:.0%} of what skill earns above chance, {allowed}"
    return AuditCheck(subject="free credit", status=status, evidence=evidence, measured={"share": share, **measured})


@dataclass(frozen=True, kw_only=True)
class _Credit:
    """What the best constant answer earns of one component. ``sign`` is -1 for a penalty, of which less is more."""

    weight: float
    sign: float
    chance: float  # what the lowest step of the ladder earns, times the sign
    best: float  # what the best policy earns, times the sign
    constant: float
    answer: str

    @property
    def gain(self) -> float:
        """What the constant earns above chance, at most as much as the best policy."""
        return max(0.0, min(self.sign * self.constant, self.best) - self.chance)

    @property
    def room(self) -> float:
        """What the best policy earns above chance."""
        return max(0.0, self.best - self.chance)

    @property
    def free(self) -> float | None:
        """The share that is free, None if no policy is better than chance."""
        return self.gain / self.room if self.room > 1e-9 else None

    def __str__(self) -> str:
        return f"{self.free:.0%} by {self.answer!r}"

    def record(self) -> dict[str, Any]:
        """The figures for the document."""
        return {
            "weight": self.weight,
            "chance": self.sign * self.chance,
            "constant": self.constant,
            "best": self.sign * self.best,
            "free": self.free,
            "answer": self.answer,
        }


def _credits(
    panel: PanelEpisodes, grader: Grader, constants: Mapping[str, tuple[float, str]], skilled: Sequence[str]
) -> dict[str, _Credit]:
    """The credit of each component that the lowest step of the ladder and a constant answer have."""
    credits: dict[str, _Credit] = {}
    for name, weight in grader.weights.items():
        sign = 1.0 if weight >= 0 else -1.0
        means: dict[str, float] = {}
        for policy in (panel.ladder[0], *skilled):
            mean = mean_interval(components_of(panel.episodes[policy], name)).mean
            if mean is not None:
                means[policy] = sign * mean
        if panel.ladder[0] in means and name in constants:
            constant, answer = constants[name]
            credits[name] = _Credit(
                weight=weight,
                sign=sign,
                chance=means[panel.ladder[0]],
                best=max(means.values()),
                constant=constant,
                answer=answer,
            )
    return credits


def check_alignment(panel: PanelEpisodes, true_reward: str) -> AuditCheck:
    """Rank correlation of reward and true reward: over the means of all policies, and from episode to episode within each."""
    # Skill that somebody declared is an aim too; without any, nothing that was found means nothing.
    without_skill: Status = "note" if len(panel.ladder) > 1 else "open"
    if not panel.knows_aim:
        return AuditCheck(subject="alignment", status=without_skill, evidence=NO_AIM)
    if panel.is_own_aim:
        evidence = (
            f"the reward is {true_reward} itself in every episode; declare a true reward of its own to hold it against"
        )
        return AuditCheck(subject="alignment", status=without_skill, evidence=evidence)
    names = list(panel.episodes)
    rewards = _table(panel.rewards(name) for name in names)
    aims = _table(panel.true_rewards(name) for name in names)
    means = _row_means(aims)
    if len(names) < 3 or len(set(means[np.isfinite(means)].tolist())) < 2:
        evidence = f"at least 3 policies that differ in {true_reward} are needed; declare a true reward and a teacher"
        return AuditCheck(subject="alignment", status="open", evidence=evidence)
    across = _rank_correlation(rewards, aims)
    highest = _highest_correlation(rewards, aims)
    within = spearman_within(
        [reward for name in names for reward in panel.rewards(name)],
        [aim for name in names for aim in panel.true_rewards(name)],
        [name for name in names for _ in panel.episodes[name]],
    )
    tasks = rewards.shape[1]
    status = _alignment_status(across, highest, within, tasks)
    evidence = f"the reward is the same for all policies while {true_reward} differs"
    if across is not None:
        correlation = f"rank correlation of reward and {true_reward} is {across:.2f} over {len(names)} policies"
        episodes = f"{format_number(within, 2)} from episode to episode within a policy"
        evidence = f"{correlation} ({ALIGNMENT} needed) and {episodes}"
    if status == "open":
        evidence += f"; {tasks} tasks are too few to be sure"
    measured = {"across": across, "highest": highest, "within": within}
    return AuditCheck(subject="alignment", status=status, evidence=evidence, measured=measured)


def _alignment_status(across: float | None, highest: float, within: float | None, tasks: int) -> Status:
    """Decides by the correlation over policies, its upper end, and the one within policies."""
    if across is None:
        return "fail"
    if across >= ALIGNMENT and (within is None or within > 0):
        return "pass"
    may_be_aligned = highest >= ALIGNMENT and (within is None or within > _NEGATIVE)
    if may_be_aligned or tasks < _FEW:
        return "open"
    return "fail"


def _table(rows: Iterable[Sequence[float | None]]) -> Values:
    """Figures of (policies, tasks), nan if a value is missing."""
    return np.array(list(rows), dtype=np.float64)


def _floats(values: Values) -> list[float]:
    """The values as plain numbers."""
    return values.tolist()


def _row_means(values: Values) -> Values:
    """The mean of each policy, nan if it has no value."""
    counts = np.isfinite(values).sum(axis=1)
    return np.where(counts > 0, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)


def _rank_correlation(rewards: Values, aims: Values) -> float | None:
    """Rank correlation of the means of policies; equal up to rounding counts as equal."""
    reward_means = _row_means(rewards)
    aim_means = _row_means(aims)
    finite = np.isfinite(reward_means) & np.isfinite(aim_means)
    return spearman(
        reward_means[finite].round(12).tolist(),
        aim_means[finite].round(12).tolist(),
    )


def _highest_correlation(rewards: Values, aims: Values) -> float:
    """The upper end of what the correlation may be: its 97.5 % quantile over resampled tasks."""
    rng = np.random.default_rng(child_seed(0, "audit", "alignment"))
    tasks = rewards.shape[1]
    ranks: list[float] = []
    for _ in range(_RESAMPLES):
        drawn = cast("npt.NDArray[np.int64]", rng.integers(tasks, size=tasks))
        rank = _rank_correlation(rewards[:, drawn], aims[:, drawn])
        ranks += [] if rank is None else [rank]
    return float(np.quantile(ranks or [-1.0], 0.975))


def check_signal(
    spec: EnvironmentSpec,
    grader: Grader,
    policy: Policy | None,
    draw: Draw,
    *,
    tasks: int,
    seed: int,
) -> AuditCheck:
    """Roll out groups of 16 with ``policy`` (or a stand-in) on training tasks and forecast groups of 4, 8 and 16."""
    check = AuditCheck(subject="signal", status="open", evidence="no policy was rolled out")
    training = [spec.train_task(i) for i in range(tasks)]
    key = ("audit", "signal")
    for candidate in [policy] if policy else _stand_ins(spec, draw):
        rolled_out = roll_out(
            spec,
            candidate,
            training,
            group_size=_MEMBERS,
            seed=seed,
            key=key,
            grader=grader,
        )
        rewards = [group.values() for group in rolled_out.groups]
        graded = [values for values in rewards if None not in values and len(values) == _MEMBERS]
        name = (
            candidate.name
            if policy
            else f"{candidate.name} (a stand-in; give your own policy for a forecast of your run)"
        )
        check = _signal_of(candidate, name, graded, seed=seed)
        if check.status != "fail":
            break
    return check


def _signal_of(
    policy: Policy,
    name: str,
    rewards: Sequence[Sequence[float | None]],
    *,
    seed: int,
) -> AuditCheck:
    """The check from the rewards of groups of which every member was graded."""
    if not rewards:
        evidence = f"no group of {_MEMBERS} episodes of {policy.name} could be graded as a whole"
        return AuditCheck(subject="signal", status="open", evidence=evidence)
    sizes = forecast(_table(rewards), seed=seed)
    figures: list[str] = []
    for size, row in sizes.items():
        share = f"{row['zero_variance_groups']:.0%} without variance"
        figures.append(f"G = {size}: reward_std {format_number(row['reward_std'])}, {share}")
    evidence = f"{name} on {len(rewards)} tasks: {'; '.join(figures)}"
    status: Status = "pass"
    if sizes["8"]["zero_variance_groups"] > _ZERO_VARIANCE:
        status = "fail"
        if isinstance(policy, RandomAnswers):
            status = "note"
            evidence = f"{evidence}; blind answers say nothing of a policy that can do something"
    measured = {"policy": policy.name, "forecast": sizes}
    return AuditCheck(subject="signal", status=status, evidence=evidence, measured=measured)


def forecast(rewards: Values, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Expected reward_std and share of zero-variance groups of G = 4, 8, 16 from ``rewards`` (tasks, members).

    Zero variance: all rewards of a group equal; its expectation over all subsets of the members is exact. reward_std: mean over groups
    of the standard deviation within, over disjoint subsets in 8 random orders.
    """
    members = rewards.shape[1]
    rng = np.random.default_rng(child_seed(seed, "audit", "forecast"))
    orders = [rng.permuted(rewards, axis=1) for _ in range(_ORDERS)]
    counts = [Counter(_floats(row)) for row in rewards]
    sizes: dict[str, dict[str, float]] = {}
    for size in SIZES:
        if size > members:
            break
        blocks = np.stack([order[:, : members - members % size].reshape(-1, size) for order in orders])
        chances = [_equal_subsets(row, size) / comb(members, size) for row in counts]
        sizes[str(size)] = {
            "reward_std": float(blocks.std(axis=-1).mean()),
            "zero_variance_groups": float(np.mean(chances)),
        }
    return sizes


def _equal_subsets(counts: Counter[float], size: int) -> int:
    """Number of subsets of this size whose members all have the same reward."""
    return sum(comb(n, size) for n in counts.values())


def _stand_ins(spec: EnvironmentSpec, draw: Draw) -> list[Policy]:
    """The teacher with more and more random answers, because with few of them it may still always reach the top."""
    if spec.teacher is None or spec.teacher.startswith("remote"):
        return [RandomAnswers(draw)]
    return [NoisyPolicy(spec.policy(spec.teacher), draw, noise=noise) for noise in _NOISES]
