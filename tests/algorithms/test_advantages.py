"""Advantages: what must hold whatever the rewards are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.algorithms import gdpo_advantages, group_advantages, maxrl_advantages, span_advantages

SCALES = ("none", "batch", "group")
BASELINES = ("mean", "leave_one_out")


def batch(seed: int, groups: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards of groups of 2 to 5 members, names and order mixed."""
    rng = np.random.default_rng(seed)
    names = np.concatenate([[7 * g - 5] * int(rng.integers(2, 6)) for g in range(groups)])
    order = rng.permutation(len(names))
    return torch.tensor(rng.normal(size=len(names))), torch.tensor(names[order])


def turns(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rewards, groups = batch(seed)
    rng = np.random.default_rng(seed + 1)
    return torch.tensor(rng.normal(size=(len(rewards), 5))), torch.tensor(rng.integers(1, 6, len(rewards))), groups


def turn_advantages(rewards_by_turn: torch.Tensor, *args, **kwargs) -> torch.Tensor:
    """Credit by turn: one channel."""
    return span_advantages(rewards_by_turn[..., None], *args, **kwargs)[..., 0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
@given(seed=st.integers(0, 10**6), shift=st.floats(-100, 100))
@settings(max_examples=30)
def test_shifting_all_rewards_changes_nothing(scale, baseline, seed: int, shift: float):
    rewards, groups = batch(seed)
    a = group_advantages(rewards, groups, scale=scale, baseline=baseline)
    b = group_advantages(rewards + shift, groups, scale=scale, baseline=baseline)
    assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_permuting_rows_permutes_advantages_and_names_do_not_matter(scale, seed: int):
    rewards, groups = batch(seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rewards)))
    a = group_advantages(rewards, groups, scale=scale)
    assert torch.allclose(group_advantages(rewards[order], -3 * groups[order], scale=scale), a[order])
    rewards_by_turn, lengths, names = turns(seed)
    b = turn_advantages(rewards_by_turn, lengths, names, scale=scale)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(lengths)))
    assert torch.allclose(turn_advantages(rewards_by_turn[order], lengths[order], -names[order], scale=scale), b[order])


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_groups_do_not_leak(seed: int):
    """What happens in one group changes no other group's advantages, unless a scale is shared on purpose."""
    rewards, groups = batch(seed)
    other = rewards.clone()
    mine = groups == groups[0]
    other[~mine] = other[~mine] * 3 + 1
    for scale in ("none", "group"):
        a, b = (group_advantages(r, groups, scale=scale) for r in (rewards, other))
        assert torch.equal(a[mine], b[mine])
        assert not torch.allclose(a[~mine], b[~mine]) or scale == "group"


@pytest.mark.parametrize("value", [0.3, 0.1, 1 / 3, 1e6 + 0.1, -0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(value: float, dtype: torch.dtype):
    """The standard deviation of equal floats is often not 0, and dividing by it makes signal out of rounding."""
    for size in range(2, 17):
        rewards = torch.full((size + 2,), value, dtype=dtype)
        rewards[-2:] = torch.tensor([0.0, 1.0], dtype=dtype)
        groups = torch.tensor([4] * size + [9, 9])
        for scale in SCALES:
            for baseline in BASELINES:
                got = group_advantages(rewards, groups, scale=scale, baseline=baseline)
                assert (got[:size] == 0).all()
                assert (got[size:] != 0).all()


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_scales_against_loops(seed: int):
    rewards, groups = batch(seed)
    rewards[groups == groups[0]] = 0.3  # one zero-variance group
    values, names = rewards.tolist(), groups.tolist()
    centered = [
        v - math.fsum(values[j] for j in range(len(values)) if names[j] == n) / names.count(n)
        for v, n in zip(values, names, strict=True)
    ]
    alive = [i for i, n in enumerate(names) if n != names[0]]
    rms = math.sqrt(sum(centered[i] ** 2 for i in alive) / len(alive))
    got = {scale: group_advantages(rewards, groups, scale=scale).tolist() for scale in SCALES}
    loo = group_advantages(rewards, groups, baseline="leave_one_out", scale="none").tolist()
    for i in alive:
        others = [values[j] for j in range(len(values)) if names[j] == names[i] and j != i]
        members = [*others, values[i]]
        assert got["none"][i] == pytest.approx(centered[i])
        assert got["batch"][i] == pytest.approx(centered[i] / rms)
        assert got["group"][i] == pytest.approx(centered[i] / np.std(members, ddof=1))
        assert loo[i] == pytest.approx(values[i] - np.mean(others))
        assert loo[i] == pytest.approx(centered[i] * len(members) / (len(members) - 1))
    for scale in ("batch", "group"):  # the baseline does not change what is divided by
        loo = group_advantages(rewards, groups, baseline="leave_one_out", scale=scale).tolist()
        assert loo == pytest.approx(
            [a * names.count(n) / max(1, names.count(n) - 1) for a, n in zip(got[scale], names, strict=True)]
        )


@given(seed=st.integers(0, 10**6), discount=st.sampled_from([1.0, 0.9]))
@settings(max_examples=40)
def test_turn_advantages_against_loops(seed: int, discount: float):
    rewards_by_turn, lengths, groups = turns(seed)
    got = turn_advantages(rewards_by_turn, lengths, groups, scale="none", discount=discount)
    rows, most = rewards_by_turn.shape

    def to_go(i: int, k: int) -> float:
        return sum(discount ** (j - k) * float(rewards_by_turn[i, j]) for j in range(k, int(lengths[i])))

    for i in range(rows):
        others = [j for j in range(rows) if groups[j] == groups[i] and j != i]
        for k in range(most):
            expected = to_go(i, k) - sum(to_go(j, k) for j in others) / len(others) if k < lengths[i] else 0.0
            assert float(got[i, k]) == pytest.approx(expected, abs=1e-9)
    scaled = turn_advantages(rewards_by_turn, lengths, groups, scale="batch", discount=discount)
    played = torch.arange(most) < lengths[:, None]
    assert float((scaled[played] ** 2).mean()) == pytest.approx(1.0)
    scaled = turn_advantages(rewards_by_turn, lengths, groups, scale="group", discount=discount)
    for name in groups.unique():
        assert float((scaled[played & (groups == name)[:, None]] ** 2).mean()) == pytest.approx(1.0)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_span_channels_add_up_to_turn_advantages(seed: int):
    """Where every token stands in every span, span credit is turn credit; where spans part, each gets its own channel."""
    rewards_by_turn, lengths, groups = turns(seed)
    rng = np.random.default_rng(seed)
    parts = torch.tensor(rng.normal(size=(*rewards_by_turn.shape, 3)))
    for scale in SCALES:
        spans = span_advantages(parts, lengths, groups, scale=scale)
        assert torch.allclose(spans.sum(-1), turn_advantages(parts.sum(-1), lengths, groups, scale=scale))


def test_gdpo_scales_the_sum_over_all_episodes_as_the_paper_and_trl_do():
    """Six of eight groups have no variance: the deviation is over their episodes too."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(8, 4, 2, generator=generator, dtype=torch.float64)
    rewards[:6] = 0.5
    groups = torch.arange(8).repeat_interleave(4)
    got = gdpo_advantages(rewards.reshape(32, 2), torch.ones(2), groups, scale="group")
    parts = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, unbiased=False, keepdim=True) + 1e-300)
    total = parts.sum(-1).reshape(-1)
    assert torch.allclose(got, (total - total.mean()) / total.std(unbiased=False), rtol=1e-6)


def test_maxrl():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    assert maxrl_advantages(rewards, groups).tolist() == [3.0, -1.0, -1.0, -1.0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="must not be negative"):
        maxrl_advantages(-rewards, groups)


def test_a_group_of_one_has_no_advantage_and_bad_arguments_are_named():
    assert group_advantages(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0, 1, 1]), scale="none").tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="integers"):
        group_advantages(torch.ones(2), torch.ones(2))


def test_immediate_terms_count_in_their_own_turn_and_acts_by_what_follows():
    torch = __import__("torch")
    from gradus.algorithms import immediate_advantages

    draws = torch.Generator().manual_seed(0)
    rewards_by_turn = torch.randn(8, 5, 3, generator=draws, dtype=torch.float64)
    lengths = torch.tensor([5, 5, 3, 5, 5, 1, 5, 4])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    advantages = immediate_advantages(rewards_by_turn, lengths, groups, scale="none")
    alive = torch.arange(5) < lengths[:, None]
    masked = torch.where(alive[..., None], rewards_by_turn, 0.0)
    for row in range(8):
        others = [other for other in range(8) if other != row and groups[other] == groups[row]]
        for turn in range(int(lengths[row])):
            for channel in (1, 2):
                baseline = sum(masked[other, turn, channel] for other in others) / len(others)
                assert torch.isclose(advantages[row, turn, channel], masked[row, turn, channel] - baseline)
    total = turn_advantages(rewards_by_turn.sum(-1), lengths, groups, scale="none")
    assert torch.allclose(advantages.sum(-1), total)  # nothing is lost: the channels of a turn add up to turn credit


def test_rewards_of_sixteen_bits_that_differ_are_told_apart():
    rewards = torch.tensor([1.0, 0.6, 0.9, 0.95], dtype=torch.bfloat16)
    assert group_advantages(rewards, torch.zeros(4, dtype=torch.int64), scale="none").abs().min() > 0.01
