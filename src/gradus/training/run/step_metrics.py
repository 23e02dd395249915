"""Computes the metrics of a step from its episodes, under the names of docs/metrics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

import numpy as np
import torch

from gradus.algorithms.grouping import GroupIndex
from gradus.core import Group, Reward, StopReason
from gradus.core.metrics import StepRecord
from gradus.core.values import JsonDict
from gradus.rollouts import episodes_of
from gradus.stats import mean_of
from gradus.training.data.sequences import Episodes, Groups, sampled_tokens
from gradus.training.engine.update import UpdateResult

_ERROR = 300  # characters
CUT = (StopReason.TRUNCATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)


def episode_metrics(groups: Groups) -> JsonDict:
    """The part of a step's record that depends on its episodes alone. Undefined figures are None."""
    episodes = episodes_of(groups)
    completed = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    turns = [turn for episode in episodes for turn in episode.turns]
    answers = [turn.action for turn in turns]
    pairs = [(episode.task.seed, turn.action) for episode in completed for turn in episode.turns]
    metrics = _means([episode.metrics for episode in completed])
    true_reward = metrics.pop("true_reward", None)
    return {
        **_reward_metrics(groups),
        "true_reward_mean": true_reward,
        "components": _means([episode.reward.components if episode.reward else {} for episode in completed]),
        "component_variance": _component_variance(groups),
        "metrics": metrics,
        "groups": len(groups),
        "episodes": len(episodes),
        "failed_episodes": _share(episode.stop is StopReason.FAILED for episode in episodes),
        "broken_episodes": _share(episode.stop is StopReason.BROKEN for episode in episodes),
        **_ungraded(completed, len(episodes)),
        "truncated_episodes": _share(episode.stop in CUT for episode in episodes),
        "turn_limit_episodes": _share(episode.stop is StopReason.TURN_LIMIT for episode in episodes),
        "invalid_actions": _share(not turn.valid for turn in turns),
        "distinct_actions": len(set(answers)) / len(answers) if answers else None,
        "answer_information": answer_information(pairs),
        "turns_mean": mean_of(len(episode.turns) for episode in completed),
        "action_tokens_mean": mean_of(map(sampled_tokens, completed)),
    }


def step_record(
    step: int,
    groups: Groups,
    update: UpdateResult,
    seconds: Mapping[str, float],
    *,
    lr: float,
    dropped: int,
) -> StepRecord:
    """One line of docs/metrics.md. ``groups``: all that were rolled out; ``dropped``: how many of them dynamic sampling replaced."""
    sampled = read = 0
    for episode in episodes_of(groups):
        sampled += sampled_tokens(episode)
        read += sum(len(turn.tokens.context_ids) for turn in episode.turns if turn.tokens)
    record = {
        "kind": "step",
        "step": step,
        **episode_metrics(groups),
        **update.figures,
        "grad_norm": update.grad_norm,
        "lr": lr,
        "action_tokens": sampled,
        "trained_tokens": update.trained_tokens,
        "tokens": sampled + read,
        "seconds": dict(seconds),
        "tokens_per_second": (sampled + read) / seconds["total"],
        "dropped_groups": dropped,
    }
    return cast(StepRecord, record)


def _ungraded(completed: Episodes, episodes: int) -> JsonDict:
    """The share of episodes that have no reward, and why the first of them has none."""
    ungraded = [episode.reward for episode in completed if episode.reward_value is None]
    if not ungraded:
        return {"ungraded_episodes": 0.0 if episodes else None}
    errors = [reward.error for reward in ungraded if reward and reward.error]
    reason = errors[0] if errors else "its reward is missing"
    return {"ungraded_episodes": len(ungraded) / episodes, "reward_error": reason[:_ERROR]}


def _values(group: Group) -> list[float]:
    return [value for value in group.values() if value is not None]


def _all_equal(values: Sequence[float]) -> bool:
    """Says whether rewards are the same number but for float noise, as the advantages see it."""
    one_group = torch.zeros(len(values), dtype=torch.int64)
    return bool(GroupIndex(one_group).equal(torch.tensor(values, dtype=torch.float64))[0])


def _reward_std(values: Sequence[float]) -> float:
    """The standard deviation, exactly 0 of equal rewards."""
    return 0.0 if _all_equal(values) else float(np.std(values))


def answer_information(pairs: Sequence[tuple[object, str]]) -> float | None:
    """Mutual information of task and answer, nats, plug-in estimate over (task, answer) pairs; None without pairs.

    0 when every task gets the same answers; it overestimates where answers are many and samples few.

    >>> round(answer_information([(1, "a"), (1, "a"), (2, "b"), (2, "b")]), 3)
    0.693
    """
    if not pairs:
        return None
    total = len(pairs)
    tasks = Counter(task for task, _ in pairs)
    answers = Counter(answer for _, answer in pairs)
    terms: list[float] = []
    for (task, answer), count in Counter(pairs).items():
        ratio = count * total / (tasks[task] * answers[answer])  # of the joint probability to that of independence
        terms.append(count / total * math.log(ratio))
    return max(0.0, math.fsum(terms))  # rounding may leave less than 0


def _reward_metrics(groups: Groups) -> dict[str, float | None]:
    by_group = [_values(group) for group in groups]
    rewards = [value for values in by_group for value in values]
    return {
        "reward_mean": mean_of(rewards),
        "reward_std": mean_of(_reward_std(values) for values in by_group if len(values) > 1),
        "reward_total_std": float(np.std(rewards)) if len(rewards) > 1 else None,
        "zero_variance_groups": _share(len(values) < 2 or _all_equal(values) for values in by_group if values),
    }


def _component_variance(groups: Groups) -> dict[str, float]:
    """Share of the within-group variance of the reward that each component carries: its covariance with the reward
    over the variance of the reward, both pooled within groups. The shares sum to 1; a negative one works against the reward."""
    covariance: dict[str, float] = {}
    variance = 0.0
    for group in groups:
        graded = [episode.reward for episode in group.episodes if episode.reward]
        rewards = [reward for reward in graded if reward.value is not None]
        if len(rewards) < 2:
            continue
        values = np.asarray([reward.value for reward in rewards], dtype=float)
        centered = values - values.mean()
        variance += float(centered @ centered)
        for reward, distance in zip(rewards, centered.tolist(), strict=True):
            # The component need not be centered too: distances from the mean add up to 0.
            for name, earned in _component_sums(reward).items():
                covariance[name] = covariance.get(name, 0.0) + earned * distance
    if variance <= 0:
        return {}
    return {name: value / variance for name, value in sorted(covariance.items())}


def _component_sums(reward: Reward) -> dict[str, float]:
    sums: dict[str, float] = {}
    for term in chain.from_iterable(reward.terms):
        sums[term.component] = sums.get(term.component, 0.0) + term.value
    return sums


def _means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Name -> mean over the episodes where it is defined."""
    names = dict.fromkeys(chain.from_iterable(rows))
    means: dict[str, float | None] = {}
    for name in names:
        means[name] = mean_of(row.get(name) for row in rows)
    return means


def _share(flags: Iterable[bool]) -> float | None:
    return mean_of(map(float, flags))
