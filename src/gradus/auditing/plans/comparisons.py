"""The checks of rewards of policies: separation, exploits, free credit, alignment, and the signal for GRPO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import comb
from typing import Any

import numpy as np

from gradus.auditing.plans.judged import NO_AIM
from gradus.auditing.plans.panel import best_reflex
from gradus.auditing.plans.plan import NoisyPolicy, RandomAnswers
from gradus.auditing.records import (
    ENOUGH,
    AuditCheck,
    PanelEpisodes,
    components_of,
    high_of,
    low_of,
    signed,
)
from gradus.core import EnvironmentSpec, Grader, Policy, child_seed
from gradus.core.findings import Status
from gradus.rollouts import roll_out
from gradus.stats import Paired, format_number, mean_interval, paired_difference, spearman, spearman_within

FREE = 0.5  # a constant answer may earn at most half of what skill earns above chance
ALIGNMENT = 0.7  # rank correlation of mean reward and mean true reward over policies
_FEW = 30  # tasks below which a doubtful figure is left open
BLIND = ("silence", "random", "constant")  # policies that do not read the task
_RESAMPLES = 200
_NEGATIVE = -0.1  # within policies, reward and true reward may not run against each other
SIZES = (4, 8, 16)  # of groups, for which the signal is forecast
_MEMBERS = 16
_ZERO_VARIANCE = 0.5  # doctor warns above this share of zero-variance groups
# Of a stand-in. The first that has variance is forecast: a student may be as weak as the last.
_NOISES = (0.3, 0.6, 0.9)


def check_separation(panel: PanelEpisodes) -> AuditCheck:
    """Every step of the ladder must raise the reward.

    A step fails if its interval lies below 0 by more than the least effect, or below the least effect although the true reward rises.
    A step whose interval spans either is unresolved, unless the true reward is the same on both sides.
    """
    pairs = [(a, b) for a, b in pairwise(panel.ladder)]
    if not pairs:
        evidence = "a ladder of at least two policies is needed; declare a panel or a teacher"
        return AuditCheck(subject="separation", status="note", evidence=evidence)
    steps = {f"{b} - {a}": _difference(panel, b, a) for a, b in pairs}
    aims = {f"{b} - {a}": _difference(panel, b, a, of="true_reward") for a, b in pairs}
    least = panel.least_effect()
    raised = {n: s for n, s in steps.items() if _above(s)}
    flat = {n: s for n, s in steps.items() if n not in raised and _is_flat(s, least, aims[n])}
    # If the true reward is the same on both sides, there can be no step in the reward.
    level = [n for n, aim in aims.items() if aim.ties == aim.n >= ENOUGH]
    unsure = {n: s for n, s in steps.items() if n not in (*raised, *flat, *level)}
    status: Status = "fail" if flat else "open" if unsure else "pass" if raised else "note"
    if flat:
        evidence = f"{len(flat)} of {len(steps)} steps of skill do not raise the reward: {_told(flat)}"
    elif unsure:
        evidence = f"not known for {len(unsure)} of {len(steps)} steps of skill: {_told(unsure)}"
    elif raised:
        least_raised = min(raised, key=lambda name: _mean(raised[name]))
        told = f"{len(raised)} of {len(steps)} steps {' < '.join(panel.ladder)} raise the reward"
        evidence = f"{told}; the least is {_told({least_raised: raised[least_raised]})}"
    else:
        told = f"{' and '.join(panel.ladder)} earn the same reward, and their true reward is the same"
        evidence = f"{told}; declare a teacher that does better"
    measured = {"least_effect": least, "steps": {n: asdict(s) for n, s in steps.items()}}
    return AuditCheck(subject="separation", status=status, evidence=evidence, measured=measured)


def _told(figures: Mapping[str, Paired]) -> str:
    return ", ".join(f"{name} {signed(figure)}" for name, figure in figures.items())


def _is_flat(step: Paired, least: float, aim: Paired) -> bool:
    high = 0.0 if step.ties == step.n >= _FEW else high_of(step)  # the same reward on every task: the step is 0
    if high is None:
        return False
    return high < -least or (high <= least and _above(aim))


def check_exploits(panel: PanelEpisodes) -> AuditCheck:
    """No degenerate policy that the panel declares may beat the best honest reflex by the least effect."""
    reflex = best_reflex(panel)
    tried = {name: _difference(panel, name, reflex) for name in panel.exploits if name != reflex}
    if not tried:
        return AuditCheck(
            subject="exploits",
            status="note",
            evidence="no exploits are declared; the search tries constants and cycles",
        )
    least = panel.least_effect()
    suspects = {name: gain for name, gain in tried.items() if _mean(gain) >= least}
    winners = {name: gain for name, gain in suspects.items() if _above(gain)}
    aims = {name: _difference(panel, name, reflex, of="true_reward") for name in suspects}
    few = min(gain.n for gain in tried.values()) < _FEW
    unsure = {n: gain for n, gain in suspects.items() if few and n not in winners and _mean(aims[n]) <= 0}
    best = max(tried, key=lambda name: _mean(tried[name]))
    if winners:
        evidence = f"{len(winners)} of {len(tried)} degenerate policies beat the best honest reflex, {reflex}: {_told(winners)}"
    elif unsure:
        evidence = f"it is not known whether degenerate policies beat {reflex}: {_told(unsure)}"
    else:
        evidence = (
            f"none of {len(tried)} degenerate policies beats {reflex}; the nearest is {best} {signed(tried[best])}"
        )
    status = "fail" if winners else "open" if unsure else "pass"
    measured = {"least_effect": least, "exploits": {n: asdict(f) for n, f in tried.items()}}
    return AuditCheck(subject="exploits", status=status, evidence=evidence, measured=measured)


def check_free_credit(panel: PanelEpisodes, grader: Grader, constants: Mapping[str, tuple[float, str]]) -> AuditCheck:
    """Compares the best constant answer with the best policy, component by component, both above chance.

    ``constants``: component -> the most that any constant answer earned of it, and which answer. Chance is what the lowest step of the
    ladder earns. The whole is weighted: sum of what constants earn over sum of what skill earns.
    """
    floor, skilled = panel.ladder[0], [n for n in (*panel.ladder, *panel.reflexes) if n not in panel.exploits]
    if set(skilled) <= {floor, *BLIND}:
        evidence = "nobody is known to do better than blindly here; declare a teacher or a panel"
        return AuditCheck(subject="free credit", status="note", evidence=evidence)
    free: dict[str, dict[str, Any]] = {}
    earned = possible = 0.0
    for name, weight in grader.weights.items():
        sign = 1.0 if weight >= 0 else -1.0
        means = {each: mean_interval(components_of(panel.episodes[each], name)).mean for each in (floor, *skilled)}
        known = {each: sign * mean for each, mean in means.items() if mean is not None}
        if floor not in known or name not in constants:
            continue
        low, high = known[floor], max(known.values())
        constant = sign * constants[name][0]
        gain, room = max(0.0, min(constant, high) - low), max(0.0, high - low)
        earned, possible = earned + abs(weight) * gain, possible + abs(weight) * room
        share = gain / room if room > 1e-9 else None
        figures = {"chance": sign * low, "constant": sign * constant, "best": sign * high, "free": share}
        free[name] = {"weight": weight, **figures, "answer": constants[name][1]}
    if not free:
        evidence = (
            "no constant answer was tried (a budget of 0), or the reward of none has a component that the grader names "
            f"({', '.join(grader.weights)}); name them in its weights"
        )
        return AuditCheck(subject="free credit", status="open", evidence=evidence)
    if possible < 1e-9:
        evidence = "no policy earns more than blind answers do: every component is free for the asking"
        return AuditCheck(subject="free credit", status="fail", evidence=evidence, measured={"components": free})
    share = earned / possible
    shares = {name: each for name, each in free.items() if each["free"] is not None}
    told = ", ".join(f"{name} {each['free']:.0%} by {each['answer']!r}" for name, each in shares.items())
    bound = "more than" if share > FREE else "of at most"
    evidence = (
        f"constant answers earn {share:.0%} of what skill earns above chance, {bound} {FREE:.0%} allowed ({told})"
    )
    status = "pass" if share <= FREE else "open" if panel.tasks < _FEW else "fail"
    return AuditCheck(
        subject="free credit", status=status, evidence=evidence, measured={"share": share, "components": free}
    )


def check_alignment(panel: PanelEpisodes, true_reward: str) -> AuditCheck:
    """Rank correlation of reward and true reward: over the means of all policies, and from episode to episode within each."""
    names = list(panel.episodes)
    rewards, aims = (  # (policies, tasks), nan if a value is missing
        np.array([of(name) for name in names], dtype=np.float64) for of in (panel.rewards, panel.true_rewards)
    )
    means = _row_means(aims)
    if not panel.knows_aim:
        return AuditCheck(subject="alignment", status="note", evidence=NO_AIM)
    if np.allclose(rewards, aims, equal_nan=True):
        evidence = (
            f"the reward is {true_reward} itself in every episode; declare a true reward of its own to hold it against"
        )
        return AuditCheck(subject="alignment", status="note", evidence=evidence)
    if len(names) < 3 or len(set(means[np.isfinite(means)].tolist())) < 2:
        evidence = f"at least 3 policies that differ in {true_reward} are needed; declare a true reward and a teacher"
        return AuditCheck(subject="alignment", status="open", evidence=evidence)
    across = _rank_correlation(rewards, aims)
    highest = _highest_correlation(rewards, aims)
    pooled = spearman_within(
        [reward for name in names for reward in panel.rewards(name)],
        [aim for name in names for aim in panel.true_rewards(name)],
        [name for name in names for _ in panel.episodes[name]],
    )
    aligned = across is not None and across >= ALIGNMENT and (pooled is None or pooled > 0)
    doubtful = highest >= ALIGNMENT and (pooled is None or pooled > _NEGATIVE)
    unsure = not aligned and across is not None and (doubtful or rewards.shape[1] < _FEW)
    evidence = (
        f"the reward is the same for all policies while {true_reward} differs"
        if across is None
        else f"rank correlation of reward and {true_reward} is {across:.2f} over {len(names)} policies "
        f"({ALIGNMENT} needed) and {format_number(pooled, 2)} from episode to episode within a policy"
    )
    if unsure:
        evidence += f"; {rewards.shape[1]} tasks are too few to be sure"
    return AuditCheck(
        subject="alignment",
        status="pass" if aligned else "open" if unsure else "fail",
        evidence=evidence,
        measured={"across": across, "highest": highest, "within": pooled},
    )


def _row_means(values: np.ndarray) -> np.ndarray:
    counts = np.isfinite(values).sum(axis=1)
    return np.where(counts > 0, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)


def _rank_correlation(rewards: np.ndarray, aims: np.ndarray) -> float | None:
    x, y = _row_means(rewards), _row_means(aims)
    known = np.isfinite(x) & np.isfinite(y)
    return spearman(x[known].round(12).tolist(), y[known].round(12).tolist())


def _highest_correlation(rewards: np.ndarray, aims: np.ndarray) -> float:
    """The upper end of what the correlation may be: its 97.5 % quantile over resampled tasks."""
    rng = np.random.default_rng(child_seed(0, "audit", "alignment"))
    tasks = rewards.shape[1]
    draws = [rng.integers(tasks, size=tasks) for _ in range(_RESAMPLES)]
    ranks = [_rank_correlation(rewards[:, drawn], aims[:, drawn]) for drawn in draws]
    return float(np.quantile([rank for rank in ranks if rank is not None] or [-1.0], 0.975))


def _difference(panel: PanelEpisodes, a: str, b: str, of: str = "reward") -> Paired:
    values = panel.rewards if of == "reward" else panel.true_rewards
    return paired_difference(values(a), values(b))


def _mean(difference: Paired) -> float:
    return -np.inf if difference.mean is None else difference.mean


def _above(difference: Paired) -> bool:
    return (low_of(difference) or 0.0) > 0


def check_signal(
    spec: EnvironmentSpec, grader: Grader, policy: Policy | None, draw: Callable[[int], str], *, tasks: int, seed: int
) -> AuditCheck:
    """Roll out groups of 16 with ``policy`` (or a stand-in) on training tasks and forecast groups of 4, 8 and 16."""
    check = AuditCheck(subject="signal", status="open", evidence="no policy was rolled out")
    wanted = [spec.train_task(i) for i in range(tasks)]
    for chosen in [policy] if policy else _stand_ins(spec, draw):
        groups = roll_out(
            spec, chosen, wanted, group_size=_MEMBERS, seed=seed, key=("audit", "signal"), grader=grader
        ).groups
        rewards = [[value for value in group.values() if value is not None] for group in groups]
        whole = [values for values in rewards if len(values) == _MEMBERS]
        check = _judged(chosen, whole, given=policy is not None, seed=seed)
        if check.status != "fail":
            break
    return check


def _judged(chosen: Policy, whole: Sequence[Sequence[float]], *, given: bool, seed: int) -> AuditCheck:
    """The check from the rewards of whole groups."""
    if not whole:
        evidence = f"no group of {_MEMBERS} episodes of {chosen.name} could be graded as a whole"
        return AuditCheck(subject="signal", status="open", evidence=evidence)
    sizes = forecast(np.array(whole), seed=seed)
    share = sizes["8"]["zero_variance_groups"]
    told = "; ".join(
        f"G = {size}: reward_std {format_number(each['reward_std'])}, {each['zero_variance_groups']:.0%} without variance"
        for size, each in sizes.items()
    )
    who = chosen.name if given else f"{chosen.name} (a stand-in; give your own policy for a forecast of your run)"
    evidence = f"{who} on {len(whole)} tasks: {told}"
    status: Status = "pass" if share <= _ZERO_VARIANCE else "fail"
    if status == "fail" and isinstance(chosen, RandomAnswers):
        status, evidence = "note", f"{evidence}; blind answers say nothing of a policy that can do something"
    measured = {"policy": chosen.name, "forecast": sizes}
    return AuditCheck(subject="signal", status=status, evidence=evidence, measured=measured)


def forecast(rewards: np.ndarray, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Expected reward_std and share of zero-variance groups of G = 4, 8, 16 from ``rewards`` (tasks, members).

    Zero variance: all rewards of a group equal; its expectation over all subsets of the members is exact. reward_std: mean over groups
    of the standard deviation within, over disjoint subsets in 8 random orders.
    """
    members = rewards.shape[1]
    rng = np.random.default_rng(child_seed(seed, "audit", "forecast"))
    orders = [rng.permuted(rewards, axis=1) for _ in range(8)]
    sizes: dict[str, dict[str, float]] = {}
    for size in (each for each in SIZES if each <= members):
        blocks = np.stack([order[:, : members - members % size].reshape(-1, size) for order in orders])
        chances = [
            sum(comb(count, size) for count in Counter(row.tolist()).values()) / comb(members, size) for row in rewards
        ]
        sizes[str(size)] = {
            "reward_std": float(blocks.std(axis=-1).mean()),
            "zero_variance_groups": float(np.mean(chances)),
        }
    return sizes


def _stand_ins(spec: EnvironmentSpec, draw: Callable[[int], str]) -> list[Policy]:
    """The teacher with more and more random answers, because with few of them it may still always reach the top."""
    if spec.teacher is None or spec.teacher.startswith("remote"):
        return [RandomAnswers(draw)]
    return [NoisyPolicy(spec.policy(spec.teacher), draw, noise=noise) for noise in _NOISES]
