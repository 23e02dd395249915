"""Will GRPO have anything to learn from? The reward_std of groups and the share of zero-variance groups, before the first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import comb

import numpy as np

from gradus.auditing.plans.plan import NoisyPolicy, RandomAnswers
from gradus.auditing.records import Check, Status
from gradus.core import EnvironmentSpec, Grader, Policy, child_seed
from gradus.rollouts import roll_out
from gradus.stats import format_number

SIZES = (4, 8, 16)
_MEMBERS = 16
_ZERO_VARIANCE = 0.5  # doctor warns above this share of zero-variance groups
# Of a stand-in. The first that has variance is forecast: a student may be as weak as the last.
_NOISES = (0.3, 0.6, 0.9)


def check_signal(
    spec: EnvironmentSpec, grader: Grader, policy: Policy | None, draw: Callable[[int], str], *, tasks: int, seed: int
) -> Check:
    """Roll out groups of 16 with ``policy`` (or a stand-in) on training tasks and forecast groups of 4, 8 and 16."""
    check = Check(name="signal", status="unresolved", evidence="no policy was rolled out")
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


def _judged(chosen: Policy, whole: Sequence[Sequence[float]], *, given: bool, seed: int) -> Check:
    """The check from the rewards of whole groups."""
    if not whole:
        evidence = f"no group of {_MEMBERS} episodes of {chosen.name} could be graded as a whole"
        return Check(name="signal", status="unresolved", evidence=evidence)
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
        status, evidence = "skip", f"{evidence}; blind answers say nothing of a policy that can do something"
    measured = {"policy": chosen.name, "forecast": sizes}
    return Check(name="signal", status=status, evidence=evidence, measured=measured)


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
