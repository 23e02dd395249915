"""What a name means is what its paper says: each against a slow reference in float64, advantage and loss together."""

import math
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest
import torch

from gradus.algorithms import Algorithm, EpisodeRewards, algorithm_names, find_algorithm, registry

GROUPS = [[0.9, 0.1, 0.4], [0.2, 0.2, 0.8]]
LENGTHS = [3, 1, 2, 4, 2, 1]
COMPONENTS = [(1.0, 0.02), (0.0, 0.05), (0.3, 0.01), (0.2, 0.03), (0.1, 0.02), (1.0, 0.08)]
WEIGHTS = (1.0, 3.0)
NEW, OLD, BUDGET = -0.9, -1.2, 5.0  # every token moved by the same ratio, beyond every upper clip but CISPO's


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float]) -> float:
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - 1))


def rms(values: list[float]) -> float:
    return math.sqrt(mean([v * v for v in values]))


def by_group(one: Callable[[list[float]], list[float]]) -> list[float]:
    return [advantage for group in GROUPS for advantage in one(group)]


def centered(group: list[float]) -> list[float]:
    return [value - mean(group) for value in group]


def group_scaled() -> list[float]:
    return by_group(lambda group: [value / std(group) for value in centered(group)])


def batch_scaled() -> list[float]:
    plain = by_group(centered)
    return [value / rms(plain) for value in plain]


def leave_one_out(group: list[float]) -> list[float]:
    return [v - (sum(group) - v) / (len(group) - 1) for v in group]


def whitened() -> list[float]:
    rewards = [value for group in GROUPS for value in group]
    tokens = [r for r, n in zip(rewards, LENGTHS, strict=True) for _ in range(n)]
    return [(r - mean(tokens)) / rms([t - mean(tokens) for t in tokens]) for r in rewards]


def by_component() -> list[float]:
    total = [0.0] * 6
    for c, weight in enumerate(WEIGHTS):
        for start in (0, 3):
            values = [COMPONENTS[row][c] for row in range(start, start + 3)]
            for row, value in enumerate(centered(values)):
                total[start + row] += weight * value / std(values)
    return [value / rms(total) for value in total]


ADVANTAGES: dict[str, Callable[[], list[float]]] = {
    "gradus": batch_scaled,
    "grpo": group_scaled,
    "dr_grpo": lambda: by_group(centered),
    "dapo": group_scaled,
    "gspo": group_scaled,
    "cispo": group_scaled,
    "rloo": lambda: by_group(leave_one_out),
    "reinforce++": whitened,
    "gdpo": by_component,
    "maxrl": lambda: by_group(lambda group: [value / mean(group) for value in centered(group)]),
}


def clipped(a: float, low: float, high: float) -> float:
    rho = math.exp(NEW - OLD)
    return min(rho * a, min(max(rho, 1 - low), 1 + high) * a)


def over_tokens(values: list[float]) -> float:
    return -math.fsum(v * n for v, n in zip(values, LENGTHS, strict=True)) / sum(LENGTHS)


LOSS: dict[str, Callable[[list[float]], float]] = {
    "gradus": lambda a: over_tokens([clipped(x, 0.2, 0.28) for x in a]),
    "grpo": lambda a: -mean([clipped(x, 0.2, 0.2) for x in a]),  # a sequence's mean over equal tokens is one of them
    "dr_grpo": lambda a: -math.fsum(clipped(x, 0.2, 0.2) * n for x, n in zip(a, LENGTHS, strict=True)) / (6 * BUDGET),
    "dapo": lambda a: over_tokens([clipped(x, 0.2, 0.28) for x in a]),
    "gspo": lambda a: -mean([clipped(x, 3e-4, 4e-4) for x in a]),
    "cispo": lambda a: over_tokens([math.exp(NEW - OLD) * x * NEW for x in a]),
    "rloo": lambda a: over_tokens([math.exp(NEW - OLD) * x * NEW for x in a]),
    "reinforce++": lambda a: over_tokens([clipped(x, 0.2, 0.2) for x in a]),
    "gdpo": lambda a: over_tokens([clipped(x, 0.2, 0.28) for x in a]),
    "maxrl": lambda a: over_tokens([clipped(x, 0.2, 0.28) for x in a]),
}


def advantages(algorithm: Algorithm) -> torch.Tensor:
    rewards = EpisodeRewards(
        values=torch.tensor([value for group in GROUPS for value in group], dtype=torch.float64),
        groups=torch.tensor([0, 0, 0, 1, 1, 1]),
        lengths=torch.tensor(LENGTHS),
        components=torch.tensor(COMPONENTS, dtype=torch.float64),
        weights=torch.tensor(WEIGHTS, dtype=torch.float64),
    )
    return algorithm.advantage(rewards, baseline=algorithm.baseline, scale=algorithm.scale or "batch")


@pytest.mark.parametrize("name", algorithm_names())
def test_a_name_is_its_paper(name: str):
    algorithm = find_algorithm(name)
    expected = ADVANTAGES[name]()
    got = advantages(algorithm)
    assert got.tolist() == pytest.approx(expected, rel=1e-10)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    low, high = algorithm.clip or (1.0, 1.0)
    result = algorithm.loss(
        torch.full(mask.shape, NEW, dtype=torch.float64),
        torch.full(mask.shape, OLD, dtype=torch.float64),
        got[:, None].expand(mask.shape),
        mask,
        n_tokens=sum(LENGTHS),
        n_sequences=6,
        clip_low=low,
        clip_high=high,
        max_tokens=BUDGET,
    )
    assert float(result.loss) == pytest.approx(LOSS[name](expected), rel=1e-10)


def test_only_our_own_name_follows_the_grader():
    assert [name for name in algorithm_names() if find_algorithm(name).credit is None] == ["gradus"]
    assert all(find_algorithm(name).source for name in algorithm_names())


def test_another_package_can_add_one(monkeypatch: pytest.MonkeyPatch):
    entry = EntryPoint(name="theirs", value="gradus.algorithms.losses:LOSSES", group="gradus.algorithms")
    monkeypatch.setattr(registry, "_installed", lambda: {"theirs": entry})
    assert "theirs" in algorithm_names()
    with pytest.raises(ValueError, match="is a dict; expected an Algorithm"):
        find_algorithm("theirs")
    with pytest.raises(ValueError, match="unknown algorithm 'ppo'; there are gradus, grpo"):
        find_algorithm("ppo")
