"""Looks at a comparison under way: all of them together err no more often than one look does."""

import numpy as np
import pytest

from gradus.stats import LOOKS, decide, level_of, look_sizes, paired_difference

LEVEL = level_of(looks=LOOKS)

REPETITIONS = 1500


def _stops(effect: float, tasks: int) -> tuple[float, float, float]:
    """Shares of repetitions that prove a difference and whose interval holds the truth, and the share of tasks that was seen."""
    rng = np.random.default_rng(0)
    proven = held = seen = 0
    for _ in range(REPETITIONS):
        x = rng.normal(effect / np.sqrt(tasks), 1.0, tasks)
        for size in look_sizes(tasks):
            paired = paired_difference(x[:size], np.zeros(size), level=LEVEL)
            if (decision := decide(paired, tasks)) != "open":
                break
        assert decision != "open"
        proven, seen = proven + (decision == "proven"), seen + size
        held += paired.low <= effect / np.sqrt(tasks) <= paired.high
    return proven / REPETITIONS, held / REPETITIONS, seen / (REPETITIONS * tasks)


@pytest.mark.parametrize(("effect", "least", "most"), [(0.0, 0.01, 0.065), (4.0, 0.78, 0.95)])
def test_looks_err_as_rarely_as_one_look_and_see_fewer_tasks(effect, least, most):
    proven, held, seen = _stops(effect, 200)
    assert least < proven < most
    assert held > 0.94
    assert seen < 0.6


@pytest.mark.parametrize(("a", "b", "expected"), [
    ([1.0, 0.9, 1.1, 1.0, 0.8, 1.2] * 7, [0.0] * 42, "proven"),
    ([1.0, -1.0] * 20, [0.0] * 40, "unlikely"),
    ([0.3, 0.0, 0.1, -0.2, 0.4, 0.1] * 7, [0.1, 0.2] * 21, "open"),
    ([1.0, 0.9, 1.1, 1.0, 0.8, 1.2], [0.0] * 6, "open"),  # too few tasks for any claim
    ([0.1] * 50, [0.0] * 50, "open"),  # equal differences say nothing of the rare ones
    ([1.0] * 20, [0.0] * 20, "proven"),
    ([1.0] * 20, [1.0] * 20, "unlikely"),  # policies that never differ
    ([], [], "open"),
])  # fmt: skip
def test_a_look_decides(a, b, expected):
    assert decide(paired_difference(a, b, level=LEVEL), tasks=100) == expected


def test_sizes_rise_to_all_tasks():
    assert look_sizes(200) == [40, 80, 120, 160, 200]
    assert look_sizes(2) == [1, 2]
