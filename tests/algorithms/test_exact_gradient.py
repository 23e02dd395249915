"""Turn credit against the exact gradient of a small decision process where the policy itself chooses when to stop.

A person has one of two hidden states. At each of up to three turns the policy chooses one of three actions; the third ends
the episode. Rewards depend on state, turn and action, later ones also on the action before, and the last turn ends it anyway.
All episodes, and all groups of two and three of them, are enumerated; so the expectation of the estimate is exact, not sampled.
"""

import itertools
from functools import cache

import pytest
import torch

from gradus.algorithms import LOSSES, span_advantages

TURNS, ACTIONS, STOP = 3, 3, 2
StepRollout = tuple[int, ...]


@cache
def episodes() -> list[StepRollout]:
    """Every sequence of actions that ends with a stop or with the last turn."""
    sequences: list[StepRollout] = []
    for length in range(1, TURNS + 1):
        every = itertools.product(range(ACTIONS), repeat=length)
        sequences += [a for a in every if STOP not in a[:-1] and (a[-1] == STOP or length == TURNS)]
    return sequences


def turn_rewards(actions: StepRollout, state: int) -> list[float]:
    table = torch.tensor([0.7, -1.3, 2.1, 0.4, 1.9, -0.6, -2.2, 0.3, 1.1], dtype=torch.float64).roll(2 * state)
    rewards_by_turn = [float(table[3 * k + a]) for k, a in enumerate(actions)]
    return [p + (0.9 if k and actions[k - 1] == state else 0.0) for k, p in enumerate(rewards_by_turn)]


def logprobs(theta: torch.Tensor, actions: StepRollout) -> torch.Tensor:
    """(K,) log pi of each action; the policy sees the turn and the action before it, not the state."""
    before = [ACTIONS, *actions[:-1]]
    return torch.stack([theta[k, b].log_softmax(-1)[a] for k, (a, b) in enumerate(zip(actions, before, strict=True))])


@pytest.fixture
def theta() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(TURNS, ACTIONS + 1, ACTIONS, generator=generator, dtype=torch.float64)


def exact(theta: torch.Tensor, state: int) -> torch.Tensor:
    """The gradient of the expected return, by enumeration and autograd."""
    own = theta.clone().requires_grad_()
    value = sum(logprobs(own, e).sum().exp() * sum(turn_rewards(e, state)) for e in episodes())
    return torch.autograd.grad(value, own)[0]


def padded(rows: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    return torch.tensor([row + [0.0] * (TURNS - len(row)) for row in rows], dtype=torch.float64), lengths


def all_groups(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every group of ``size`` out of ``count`` kinds of episode: (rows,) kind of each member, (rows,) name of its group."""
    kinds = torch.cartesian_prod(*[torch.arange(count)] * size)
    return kinds.flatten(), torch.arange(len(kinds)).repeat_interleave(size)


def expected_estimate(theta: torch.Tensor, state: int, size: int, advantage) -> torch.Tensor:
    """Expectation over all groups of ``size`` of the estimated gradient, mean over members."""
    own = theta.clone().requires_grad_()
    logs = padded_logprobs(own)
    rewards_by_turn, lengths = padded([turn_rewards(e, state) for e in episodes()])
    kinds, groups = all_groups(len(logs), size)
    chance = logs.detach().sum(1).exp()[kinds].reshape(-1, size).prod(1) / size
    credit = advantage(rewards_by_turn[kinds], lengths[kinds], groups)
    total = (chance[groups, None] * credit * logs[kinds]).sum()
    return torch.autograd.grad(total, own)[0]


def padded_logprobs(theta: torch.Tensor) -> torch.Tensor:
    """(episodes, TURNS) log-probs of all episodes' actions, 0 behind their ends."""
    pad = torch.nn.functional.pad
    return torch.stack([pad(logprobs(theta, e), (0, TURNS - len(e))) for e in episodes()])


def turn_credit(rewards_by_turn: torch.Tensor, lengths: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return span_advantages(rewards_by_turn[..., None], lengths, groups, scale="none")[..., 0]


def mean_of_the_living(rewards_by_turn: torch.Tensor, lengths: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """The tempting mistake: a baseline over the members that are still playing, itself included. Groups of two, in order."""
    played = torch.arange(TURNS) < lengths[:, None]
    to_go = torch.where(played, rewards_by_turn.flip(1).cumsum(1).flip(1), 0.0)
    pairs, alive = to_go.reshape(-1, 2, TURNS), played.reshape(-1, 2, TURNS)
    mean = pairs.sum(1) / alive.sum(1).clamp(min=1)
    return torch.where(played, to_go - mean[groups], 0.0)


def test_the_probabilities_of_all_episodes_sum_to_one(theta: torch.Tensor):
    assert float(sum(logprobs(theta, e).sum().exp() for e in episodes())) == pytest.approx(1.0)
    assert len(episodes()) == 1 + 2 + 4 * 3
    assert {len(e) for e in episodes()} == {1, 2, 3}


@pytest.mark.parametrize("state", [0, 1])
@pytest.mark.parametrize("size", [2, 3])
def test_turn_credit_is_unbiased_where_the_policy_decides_when_to_stop(theta: torch.Tensor, state: int, size: int):
    got = expected_estimate(theta, state, size, turn_credit)
    assert torch.allclose(got, exact(theta, state), rtol=1e-9, atol=1e-12)


def test_this_test_can_fail(theta: torch.Tensor):
    got = expected_estimate(theta, 0, 2, mean_of_the_living)
    assert (got - exact(theta, 0)).abs().max() > 0.05 * exact(theta, 0).abs().max()


def test_the_gradient_of_the_loss_is_the_exact_one_in_expectation(theta: torch.Tensor):
    """The same through a policy loss: minus its gradient, weighted by each group's chance, is the gradient of the return."""
    own = theta.clone().requires_grad_()
    logs = padded_logprobs(own)
    rewards_by_turn, lengths = padded([turn_rewards(e, 1) for e in episodes()])
    kinds, groups = all_groups(len(logs), 2)
    chance = logs.detach().sum(1).exp()[kinds].reshape(-1, 2).prod(1)[groups, None].expand(-1, TURNS)
    advantages = turn_credit(rewards_by_turn[kinds], lengths[kinds], groups)
    mask = torch.arange(TURNS) < lengths[kinds][:, None]
    drawn, given = logs[kinds], logs[kinds].detach()
    loss = LOSSES["dapo"](
        drawn, given, advantages, mask, n_tokens=2, n_sequences=2, clip_low=0.2, clip_high=0.28, weights=chance
    ).loss
    assert torch.allclose(-torch.autograd.grad(loss, own)[0], exact(theta, 1), rtol=1e-9, atol=1e-12)


def test_span_credit_is_exact_for_what_no_other_span_can_change(theta: torch.Tensor):
    """A second token at each turn, a stated belief, is credited by its own channel, and changes nothing else.

    Its gradient is exact although its credit leaves out all that the actions earned. (An action that keeps the episode going
    earns later beliefs their chance to be rewarded; span credit leaves that out of the action's gradient, on purpose.)
    """
    immediate = [(e, b) for e in range(len(episodes())) for b in itertools.product(range(2), repeat=len(episodes()[e]))]
    belief = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    acted = padded_logprobs(theta)[[e for e, _ in immediate]].sum(1)
    pad = torch.nn.functional.pad
    said = torch.stack([pad(belief.log_softmax(-1)[list(b)], (0, TURNS - len(b))) for _, b in immediate])
    rewards = torch.zeros(len(immediate), TURNS, 2, dtype=torch.float64)
    for row, (e, b) in enumerate(immediate):
        rewards[row, : len(b), 0] = torch.tensor(turn_rewards(episodes()[e], 0), dtype=torch.float64)
        rewards[row, : len(b), 1] = torch.tensor([1.5 * x - 0.5 * k for k, x in enumerate(b)], dtype=torch.float64)
    lengths = torch.tensor([len(b) for _, b in immediate])
    value = ((acted + said.sum(1)).exp() * rewards.sum((1, 2))).sum()
    target = torch.autograd.grad(value, belief, retain_graph=True)[0]

    kinds, groups = all_groups(len(immediate), 2)
    credit = span_advantages(rewards[kinds], lengths[kinds], groups, scale="none")
    own = credit[
        ..., 1
    ]  # the shared channel counts for the belief tokens too; it cannot depend on them, so its mean is zero
    chance = (acted + said.sum(1)).exp().detach()[kinds].reshape(-1, 2).prod(1) / 2
    for part in (own, credit.sum(-1)):
        total = (chance[groups, None] * part * said[kinds]).sum()
        got = torch.autograd.grad(total, belief, retain_graph=True)[0]
        assert torch.allclose(got, target, rtol=1e-9, atol=1e-12)
