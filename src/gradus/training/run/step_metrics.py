"""Computes the metrics of a step from its episodes, under the names of docs/metrics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from gradus.algorithms.grouping import GroupIndex
from gradus.core import Episode, Group, StopReason
from gradus.core.metrics import StepRecord
from gradus.stats import mean_of
from gradus.training.data.credit import graded_episodes
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.update import UpdateResult

_ERROR = 300  # characters
CUT = (StopReason.TRUNCATED, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)


def episode_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """The part of a step's record that depends on its episodes alone. Undefined figures are None."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = [turn for episode in episodes for turn in episode.turns]
    answers = [turn.action for turn in turns]
    completed = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    return {
        **_reward_metrics(groups),
        "true_reward_mean": mean_of(episode.metrics.get("true_reward") for episode in completed),
        "components": _means(completed, lambda episode: episode.reward.components if episode.reward else {}),
        "component_variance": _component_variance(groups),
        "metrics": {k: v for k, v in _means(completed, lambda episode: episode.metrics).items() if k != "true_reward"},
        "groups": len(groups),
        "episodes": len(episodes),
        "failed_episodes": _share(episode.stop is StopReason.FAILED for episode in episodes),
        **_ungraded(completed, len(episodes)),
        "truncated_episodes": _share(episode.stop in CUT for episode in episodes),
        "turn_limit_episodes": _share(episode.stop is StopReason.TURN_LIMIT for episode in episodes),
        "invalid_actions": _share(not turn.valid for turn in turns),
        "distinct_actions": len(set(answers)) / len(answers) if answers else None,
        "answer_information": answer_information(
            [(episode.task.seed, turn.action) for episode in completed for turn in episode.turns]
        ),
        "turns_mean": mean_of(len(episode.turns) for episode in completed),
        "action_tokens_mean": mean_of(
            sum(len(turn.tokens.action_ids) for turn in episode.turns if turn.tokens) for episode in completed
        ),
    }


def step_record(
    step: int,
    groups: Sequence[Group],
    update: UpdateResult,
    seconds: Mapping[str, float],
    *,
    lr: float,
    dropped: int,
) -> StepRecord:
    """One line of docs/metrics.md. ``groups``: all that were rolled out; ``dropped``: how many of them dynamic sampling replaced."""
    turns = [turn.tokens for group in groups for episode in group.episodes for turn in episode.turns if turn.tokens]
    sampled = sum(len(tokens.action_ids) for tokens in turns)
    read = sum(len(tokens.context_ids) for tokens in turns)
    record: dict[str, Any] = {
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


def credit_agreement(groups: Sequence[Group], samples: Sequence[TrainingSample]) -> float | None:
    """The correlation within groups of rewards and advantages, each episode's the mean over its tokens.

    1 if advantages follow the rewards, 0 if they have nothing to do with them, -1 if the sign is wrong. None if one of the two
    is the same all over each group.
    """
    rewards = [each.reward.value for each in graded_episodes(groups) if each.reward]
    names, sums, counts = (np.zeros(len(rewards)) for _ in range(3))
    for sample in samples:
        assert sample.advantages is not None
        names[sample.episode] = sample.key[0]
        sums[sample.episode] += float(sample.advantages.sum())
        counts[sample.episode] += sample.actions
    given = np.stack([sums / np.maximum(counts, 1), np.array(rewards, dtype=float)])
    for name in np.unique(names):
        given[:, names == name] -= given[:, names == name].mean(axis=1, keepdims=True)
    size = float(np.linalg.norm(given[0]) * np.linalg.norm(given[1]))
    return float(given[0] @ given[1]) / size if size > 1e-12 else None


def _ungraded(completed: Sequence[Episode], episodes: int) -> dict[str, Any]:
    """The share of episodes that have no reward, and why the first of them has none."""
    without = [each.reward for each in completed if each.reward is None or each.reward.value is None]
    if not without:
        return {"ungraded_episodes": 0.0 if episodes else None}
    why = next((each.error for each in without if each and each.error), "its reward is missing")
    return {"ungraded_episodes": len(without) / episodes, "reward_error": why[:_ERROR]}


def has_zero_variance(group: Group) -> bool:
    """Says whether the raw rewards of a group are all equal, so that they say nothing on which member did better."""
    values = [value for value in group.values() if value is not None]
    return len(values) < 2 or _all_equal(values)


def _all_equal(values: Sequence[float]) -> bool:
    """Says whether rewards are the same number but for float noise, as the advantages see it."""
    names = torch.zeros(len(values), dtype=torch.int64)
    return bool(GroupIndex(names).equal(torch.tensor(values, dtype=torch.float64))[0])


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
    both, tasks, answers = Counter(pairs), Counter(task for task, _ in pairs), Counter(answer for _, answer in pairs)
    total = len(pairs)
    terms = (count / total * math.log(count * total / (tasks[t] * answers[a])) for (t, a), count in both.items())
    return max(0.0, math.fsum(terms))


def _reward_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    values = [[value for value in group.values() if value is not None] for group in groups]
    flat = [value for group in values for value in group]
    return {
        "reward_mean": mean_of(flat),
        "reward_std": mean_of(_reward_std(group) for group in values if len(group) > 1),
        "reward_total_std": float(np.std(flat)) if len(flat) > 1 else None,
        "zero_variance_groups": _share(len(group) < 2 or _all_equal(group) for group in values if group),
    }


def _component_variance(groups: Sequence[Group]) -> dict[str, float]:
    """Share of the within-group variance of the reward that each component carries: its covariance with the reward
    over the variance of the reward, both pooled within groups. The shares sum to 1; a negative one works against the reward."""
    covariance: dict[str, float] = {}
    variance = 0.0
    for group in groups:
        rewards = [episode.reward for episode in group.episodes if episode.reward and episode.reward.value is not None]
        if len(rewards) < 2:
            continue
        sums = [_component_sums(reward.terms) for reward in rewards]
        values = np.asarray([reward.value for reward in rewards], dtype=float)
        centered = values - values.mean()
        variance += float(centered @ centered)
        for name in {name for one in sums for name in one}:
            carried = float(np.asarray([one.get(name, 0.0) for one in sums]) @ centered)
            covariance[name] = covariance.get(name, 0.0) + carried
    return {name: value / variance for name, value in sorted(covariance.items())} if variance > 0 else {}


def _component_sums(terms: Sequence[Sequence[Any]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for turn in terms:
        for term in turn:
            sums[term.component] = sums.get(term.component, 0.0) + term.value
    return sums


def _means(episodes: Sequence[Episode], read: Callable[[Episode], Any]) -> dict[str, float | None]:
    """Name -> mean over the episodes where it is defined."""
    rows = [read(episode) for episode in episodes]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: mean_of(row.get(name) for row in rows) for name in names}


def _share(flags: Iterable[bool]) -> float | None:
    listed = list(flags)
    return sum(listed) / len(listed) if listed else None
