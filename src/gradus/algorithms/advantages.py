"""Advantages: how much better than its group a member, or one of its turns, was.

Rewards go in as float64 if they can; all functions compute in the type they are given. Rows of one group share a task;
groups are told apart by name, never by position. If all members are equal, the advantage is exactly 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradus.algorithms.grouping import GroupIndex, along_rows

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["none", "batch", "group"]


def group_advantages(rewards: Tensor, groups: Tensor, *, baseline: Baseline = "mean", scale: Scale = "batch") -> Tensor:
    """One advantage per episode.

    Args:
        rewards: (N,) grades.
        groups: (N,) integer names; rows with the same name are one group, in any order.
        baseline: ``mean`` of the group (arXiv 2402.03300; biased by (G - 1) / G, the same for all), or ``leave_one_out``,
            the mean of the other members: G / (G - 1) (r - mean) (RLOO, arXiv 2402.14740), unbiased.
        scale: ``none`` (Dr. GRPO, arXiv 2503.20783); ``batch``: one number for all, the root mean square over rows of
            groups with variance; ``group``: each group's own standard deviation (n - 1), as in the original GRPO. The original adds
            a small constant to the deviation; here groups without variance are exactly 0 instead.

    Returns:
        (N,) in the type of ``rewards``. A group of one gets 0.
    """
    index = GroupIndex(groups)
    centered = _center(rewards, index, "mean")
    everywhere = torch.ones_like(rewards, dtype=torch.bool)
    size = _scales(centered, everywhere, index.equal(rewards), index, scale)
    return _center(rewards, index, baseline) / size


def span_advantages(
    rewards: Tensor, lengths: Tensor, groups: Tensor, *, scale: Scale = "batch", discount: float = 1.0
) -> Tensor:
    """One advantage per turn and channel: reward-to-go minus the mean reward-to-go of the other members at the same turn.

    Members that have stopped count as 0 in that mean. So the baseline of a turn depends on the other members alone, not
    on what this member did, and the policy gradient stays unbiased even if the policy decides when to stop. (A mean over the
    other members that still run is unbiased for the same reason, with another variance.)

    Channel 0 holds the rewards that belong to no span and counts for every token of a turn; credit by turn has this channel
    alone. Each further channel holds the rewards of one kind of span and counts for the tokens of that span only. All
    channels are divided by one scale, so that their weights in the reward stay what they are.

    Args:
        rewards: (N, K, C) rewards by turn and channel; what lies after ``lengths`` is ignored.
        lengths: (N,) number of turns of each episode.
        groups: (N,) integer names.
        scale: ``none``; ``batch``: root mean square of the sum over channels, over all turns of groups with variance;
            ``group``: the same within each group.
        discount: per turn.

    Returns:
        (N, K, C), 0 after ``lengths``.
    """
    channels = [rewards_to_go(channel, lengths, discount=discount) for channel in rewards.unbind(-1)]
    present = _present(rewards, lengths)
    return _by_channel(torch.stack(channels, -1), present, groups, scale)


def immediate_advantages(
    rewards: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    scale: Scale = "batch",
    discount: float = 1.0,
    informing: bool = True,
) -> Tensor:
    """One advantage per turn for what was done (channel 0) and for each kind of immediate term (the other channels).

    Nothing later depends on an immediate term: its advantage is its own reward minus the leave-one-out mean of the same turn. What
    was done is credited as by :func:`span_advantages`, with the immediate terms of later turns (acting is how one learns what
    to say) but not with those of the same turn, which was said before it was done.

    All channels are divided by one scale, so that their weights in the reward stay what they are. (A scale for each was tried:
    it gave an immediate term whose rewards hardly differ, and whose gradient is mostly noise between persons, the weight of acting.)

    Args:
        rewards: (N, K, C) rewards by turn and channel; channel 0 holds everything that is not immediate.
        lengths, groups, discount: as in :func:`span_advantages`.
        scale: ``none``, ``batch`` or ``group``: root mean square of the sum over channels.
        informing: whether what was done answers for the immediate terms of later turns. Without it, what is said at random later is
            no noise in the credit of what is done now, and no reward for finding out.

    Returns:
        (N, K, C), 0 after ``lengths``.
    """
    present = _present(rewards, lengths)
    masked = torch.where(present[..., None], rewards, 0.0)
    immediate = masked[..., 1:]
    if informing:
        later = rewards_to_go(masked.sum(-1), lengths, discount=discount)
        # What was said in the same turn came before what was done.
        later = later - immediate.sum(-1)
    else:
        later = rewards_to_go(masked[..., 0], lengths, discount=discount)
    channels = torch.cat([later[..., None], immediate], dim=-1)
    return _by_channel(channels, present, groups, scale)


def _by_channel(returns: Tensor, present: Tensor, groups: Tensor, scale: Scale) -> Tensor:
    """Returns (N, K, C) less the leave-one-out mean of the same turn and channel, all channels divided by one scale."""
    index = GroupIndex(groups)
    centered = _center(returns, index, "leave_one_out")
    centered = torch.where(present[..., None], centered, 0.0)
    # Equal by channel, not by sum: a turn may give one span what it takes from another.
    equal = index.equal(returns).flatten(1).all(1)
    size = _scales(centered.sum(-1), present, equal, index, scale)
    return centered / size[..., None]


def _present(rewards: Tensor, lengths: Tensor) -> Tensor:
    """(N, K) bool, true up to each episode's length."""
    turns = torch.arange(rewards.shape[1], device=rewards.device)
    return turns < lengths[:, None]


def rewards_to_go(turn_rewards: Tensor, lengths: Tensor, *, discount: float = 1.0) -> Tensor:
    """(N, K) sum of the rewards from each turn to the end of its episode (``lengths`` (N,)); 0 after it."""
    present = _present(turn_rewards, lengths)
    masked = torch.where(present, turn_rewards, 0.0)
    to_go = torch.zeros_like(masked)
    running = torch.zeros_like(masked[:, 0])
    for turn in range(masked.shape[1] - 1, -1, -1):
        running = masked[:, turn] + discount * running
        to_go[:, turn] = running
    return to_go


def gdpo_advantages(
    components: Tensor, weights: Tensor, groups: Tensor, *, scale: Scale = "batch", baseline: Baseline = "mean"
) -> Tensor:
    """Each reward component is centered and scaled on its own, then weighted and summed, then scaled as a whole.

    A component with a small range is not drowned by one with a large range, which happens when rewards are summed first.
    Source: GDPO, arXiv 2601.05242. There each component is scaled by its group's deviation (``scale="group"``); the
    default here is one scale per component for the batch. The sum is divided by its deviation over all
    episodes of the batch, groups without variance included, as in the paper.

    Args:
        components: (N, C) unweighted rewards, NaN where one does not apply: it neither counts there nor for the others' mean and scale.
        weights: (C,).
        groups: (N,) integer names.

    Returns:
        (N,).
    """
    parts = [torch.zeros_like(part) for part in components.unbind(-1)]
    for part, values in zip(parts, components.unbind(-1), strict=True):
        applies = ~values.isnan()
        if bool(applies.any()):
            part[applies] = group_advantages(values[applies], groups[applies], baseline=baseline, scale=scale)
    weighted = torch.stack(parts, -1) * weights.to(components)
    total = weighted.sum(-1)
    if scale == "none":
        return total
    deviation = total.std(unbiased=False)
    if deviation > 0:
        return total / deviation
    return torch.zeros_like(total)


def maxrl_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """(r - mean) / mean within each group: to first order the gradient of the log of the mean reward.

    Groups that seldom succeed weigh more than under GRPO. Source: MaxRL, arXiv 2602.02710.

    Args:
        rewards: (N,), non-negative.
        groups: (N,) integer names.

    Returns:
        (N,); 0 in groups whose rewards are all equal, all zero included.

    Raises:
        ValueError: a reward is negative.
    """
    if bool((rewards < 0).any()):
        raise ValueError(
            f"maxrl divides by the mean reward, so rewards must not be negative, got {float(rewards.min()):g}; "
            "shift the reward, or use another algorithm"
        )
    index = GroupIndex(groups)
    means = index.sum(rewards) / index.size
    mean = means[index.place]
    # Where the mean is 0, so are all rewards.
    divisor = mean.clamp(min=torch.finfo(mean.dtype).tiny)
    advantages = _center(rewards, index, "mean") / divisor
    return torch.where(mean > 0, advantages, 0.0)


def reinforce_pp_advantages(rewards: Tensor, lengths: Tensor) -> Tensor:
    """Rewards whitened over all tokens of the batch; no groups.

    Source: REINFORCE++, arXiv 2501.03262, without discount: every token of an episode has the return of its end, so mean and
    deviation over tokens are those over episodes, each counted as often as it has tokens. The paper's KL penalty stands in
    the reward; here it is a term of the loss.

    Args:
        rewards: (N,).
        lengths: (N,) sampled tokens of each episode.

    Returns:
        (N,); all 0 if all rewards are equal.
    """
    if rewards.numel() == 0 or bool(GroupIndex(torch.zeros_like(lengths)).equal(rewards)[0]):
        return torch.zeros_like(rewards)
    share = lengths.to(rewards) / lengths.sum().clamp(min=1)
    centered = rewards - (share * rewards).sum()
    variance = (share * centered**2).sum()
    std = variance.sqrt()
    if std > 0:
        return centered / std
    return torch.zeros_like(rewards)  # all tokens have one reward


def _center(values: Tensor, index: GroupIndex, baseline: Baseline) -> Tensor:
    """(N, ...) minus the group's mean or the mean of the others; exactly 0 if a group is all equal."""
    size = along_rows(index.size.to(values.dtype), values)
    means = index.sum(values) / size
    centered = values - means[index.place]
    if baseline == "leave_one_out":
        factors = size / (size - 1).clamp(min=1)
        centered = centered * factors[index.place]
    # The mean of equal numbers may be off by a rounding, which a scale would blow up to an advantage.
    equal = index.equal(values)[index.place]
    return torch.where(equal, torch.zeros_like(centered), centered)


def _scales(centered: Tensor, counted: Tensor, equal: Tensor, index: GroupIndex, scale: Scale) -> Tensor:
    """Returns what to divide ``centered`` (N,) or (N, K) by: broadcastable to it, 1 if there is nothing to scale.

    ``counted`` (like ``centered``) marks the entries that exist, ``equal`` (n,) the groups that do not count.
    """
    if scale == "none":
        return centered.new_ones([1] * centered.ndim)
    varied = counted & ~along_rows(equal[index.place], centered)
    squares = torch.where(varied, centered**2, 0.0)
    square = squares.reshape(centered.shape[0], -1).sum(1)
    number = varied.reshape(centered.shape[0], -1).sum(1)
    if scale == "batch":
        variance = square.sum() / number.sum().clamp(min=1)
        size = variance.sqrt().reshape([1] * centered.ndim)
    else:
        degrees = index.sum(number)
        # One advantage per member: the usual standard deviation, n - 1 in the denominator.
        if centered.ndim == 1:
            degrees = degrees - 1
        variances = index.sum(square) / degrees.clamp(min=1)
        size = along_rows(variances.sqrt()[index.place], centered)
    # What would be divided by 0 is 0 already.
    return torch.where(size > 0, size, torch.ones_like(size))
