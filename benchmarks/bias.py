"""How far the expected gradient of each setting points away from the gradient of the expected return.

A decision process so small that every batch is enumerated: a hidden state of two, up to three turns, three actions of which one ends the
episode. At each turn the policy first says what it believes, then acts. A batch is one group of two for each state. Nothing is sampled.
Prints the share of the expected step that is orthogonal to the exact gradient, and one JSON line last.

    python benchmarks/bias.py
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from _shared import print_line
from torch import Tensor

from gradus.algorithms import Scale, group_advantages, immediate_advantages, span_advantages

TURNS, ACTIONS, STOP, ASK = 3, 3, 2, 1
REWARDS = torch.tensor([0.7, -1.3, 2.1, 0.4, 1.9, -0.6, -2.2, 0.3, 1.1], dtype=torch.float64)
Kind = tuple[tuple[int, ...], tuple[int, ...]]  # the actions of an episode, and what it said before each
Advantage = Callable[[Tensor, Tensor, Tensor], Tensor]  # rewards (N, K, 2), lengths (N,), groups (N,) -> (N, K, 2)


def kinds() -> list[Kind]:
    """Every episode that can happen."""
    actions = [a for n in range(1, TURNS + 1) for a in itertools.product(range(ACTIONS), repeat=n)]
    ended = [a for a in actions if STOP not in a[:-1] and (a[-1] == STOP or len(a) == TURNS)]
    return [(a, said) for a in ended for said in itertools.product(range(2), repeat=len(a))]


def rewards_of(kind: Kind, state: int, heard: float) -> list[list[float]]:
    """(K, 2): what each turn's action earned, and what its statement did. ``heard``: what a true statement adds to the next action's reward."""
    actions, said = kind
    table = REWARDS.roll(2 * state)
    acted = [float(table[3 * k + a]) + (heard if k and said[k - 1] == state else 0.0) for k, a in enumerate(actions)]
    return [[acted[k], 1.5 if said[k] == state else -0.5] for k in range(len(actions))]


def logprobs(theta: Tensor, kind: Kind, state: int) -> Tensor:
    """(TURNS, 2) log-probs of actions and statements, 0 behind the end. After ASK the policy knows the state when it speaks."""
    actions, said = kind
    rows: list[Tensor] = []
    for k, (action, word) in enumerate(zip(actions, said, strict=True)):
        before = ACTIONS if k == 0 else actions[k - 1]
        known = state if before == ASK else 2
        rows.append(
            torch.stack(
                [theta[k, before, :ACTIONS].log_softmax(-1)[action], theta[k, known, ACTIONS:].log_softmax(-1)[word]]
            )
        )
    return torch.nn.functional.pad(torch.stack(rows), (0, 0, 0, TURNS - len(rows)))


class Process:
    """All episodes of both states, their chances, rewards and log-probs, and the gradient of the expected return."""

    def __init__(self, heard: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.theta = torch.randn(
            TURNS, ACTIONS + 1, ACTIONS + 2, generator=generator, dtype=torch.float64, requires_grad=True
        )
        every = kinds()
        self.lengths = torch.tensor([len(actions) for actions, _ in every])
        self.logs = [torch.stack([logprobs(self.theta, kind, state) for kind in every]) for state in range(2)]
        padded = torch.zeros(2, len(every), TURNS, 2, dtype=torch.float64)
        for state, (row, kind) in itertools.product(range(2), enumerate(every)):
            padded[state, row, : len(kind[0])] = torch.tensor(rewards_of(kind, state, heard), dtype=torch.float64)
        self.rewards = padded
        returns = [(self.logs[s].sum((1, 2)).exp() * padded[s].sum((1, 2))).sum() for s in range(2)]
        value = torch.stack(returns).sum()
        self.exact = torch.autograd.grad(value, self.theta, retain_graph=True)[0]

    def expected(self, advantage: Advantage, weight: Callable[[Tensor], Tensor]) -> Tensor:
        """The expected gradient: over all groups of two of each state. ``weight``: lengths (G, 2) -> factor of each member's tokens."""
        total = torch.zeros_like(self.theta)
        count = len(self.lengths)
        pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))
        members, groups = pairs.flatten(), torch.arange(len(pairs)).repeat_interleave(2)
        for state in range(2):
            chance = self.logs[state].detach().sum((1, 2)).exp()[pairs].prod(1)
            credit = advantage(self.rewards[state][members], self.lengths[members], groups)
            factor = chance[groups] * weight(self.lengths[pairs]).flatten()
            surrogate = (factor[:, None, None] * credit * self.logs[state][members]).sum()
            total += torch.autograd.grad(surrogate, self.theta, retain_graph=True)[0]
        return total

    def elsewhere(self, advantage: Advantage, weight: Callable[[Tensor], Tensor] | None = None) -> float:
        """The sine of the angle between the expected gradient and the exact one."""
        got = self.expected(advantage, weight or (lambda lengths: torch.ones_like(lengths, dtype=torch.float64)))
        cosine = torch.nn.functional.cosine_similarity(got.flatten(), self.exact.flatten(), dim=0)
        return float((1 - cosine**2).clamp(min=0).sqrt())


def by_turn(scale: Scale = "none", discount: float = 1.0) -> Advantage:
    """Credit by turn: both tokens of a turn get all that follows."""

    def advantage(rewards: Tensor, lengths: Tensor, groups: Tensor) -> Tensor:
        whole = rewards.sum(-1, keepdim=True)
        return span_advantages(whole, lengths, groups, scale=scale, discount=discount).expand(-1, -1, 2)

    return advantage


def by_episode(scale: Scale = "none") -> Advantage:
    """One advantage for all tokens of an episode."""

    def advantage(rewards: Tensor, lengths: Tensor, groups: Tensor) -> Tensor:
        whole = group_advantages(rewards.sum((1, 2)), groups, scale=scale)
        return whole[:, None, None].expand(-1, TURNS, 2)

    return advantage


def immediate(informing: bool) -> Advantage:
    """Statements are paid at once; actions answer for all rewards of actions, and with ``informing`` for later statements too."""

    def advantage(rewards: Tensor, lengths: Tensor, groups: Tensor) -> Tensor:
        return immediate_advantages(rewards, lengths, groups, scale="none", informing=informing)

    return advantage


def main() -> None:
    plain, heard = Process(), Process(heard=0.9)
    by_tokens = lambda lengths: 1 / lengths.sum(1, keepdim=True).expand(-1, 2).double()  # noqa: E731
    by_sequence = lambda lengths: 1 / lengths.double()  # noqa: E731
    rows = {
        "credit = turn, no scale, a constant denominator": plain.elsewhere(by_turn()),
        "credit = episode, no scale, a constant denominator": plain.elsewhere(by_episode()),
        "division by the tokens of the batch (dapo), credit = turn": plain.elsewhere(by_turn(), by_tokens),
        "division by the tokens of the batch (dapo), credit = episode": plain.elsewhere(by_episode(), by_tokens),
        "mean over each sequence (grpo), credit = turn": plain.elsewhere(by_turn(), by_sequence),
        "mean over each sequence (grpo), credit = episode": plain.elsewhere(by_episode(), by_sequence),
        "scale = group, credit = turn": plain.elsewhere(by_turn("group")),
        "scale = group, credit = episode (grpo)": plain.elsewhere(by_episode("group")),
        "discount = 0.95": plain.elsewhere(by_turn(discount=0.95)),
        "discount = 0.8": plain.elsewhere(by_turn(discount=0.8)),
        "immediate terms": plain.elsewhere(immediate(True)),
        "immediate terms, informing = false": plain.elsewhere(immediate(False)),
        "immediate terms on which later rewards do depend": heard.elsewhere(immediate(True)),
    }
    print("| setting | expected step that points elsewhere |\n|---|---|")
    for name, share in rows.items():
        print(f"| {name} | {share:.1%} |")
    by_token, by_mean = list(rows.values())[2], list(rows.values())[4]
    print_line("bias", ratio=by_mean / by_token, ours=by_token, other=by_mean, unit="sine of the angle", runs=1)


if __name__ == "__main__":
    main()
