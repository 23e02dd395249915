"""Intervals over training seeds and tasks: what they become with one seed, and what they promise in repetition."""

import numpy as np
import pytest

from gradus.stats import crossed_difference, crossed_interval, mean_interval, paired_difference

# Standard deviations of seeds, tasks and noise: no effect of seeds, a small one, a large one, and nothing but noise.
MIXES = [(0.0, 1.0, 1.0), (0.1, 1.0, 0.5), (0.5, 1.0, 1.0), (0.1, 0.0, 1.0)]


def table(rng, seeds, tasks, mix):
    seed, task, noise = mix
    x = seed * rng.standard_normal((seeds, 1)) + task * rng.standard_normal((1, tasks))
    return (x + noise * rng.standard_normal((seeds, tasks))).tolist()


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("mix", MIXES)
def test_intervals_hold_what_they_promise(seeds, mix):
    """1,000 repetitions of a truth of 0: the standard error of a share of 0.95 is 0.007."""
    rng = np.random.default_rng(7)
    bounds = [crossed_interval(table(rng, seeds, 50, mix)) for _ in range(1000)]
    assert np.mean([each.low <= 0 <= each.high for each in bounds]) > 0.93


def test_two_equal_methods_with_other_seeds_seldom_differ():
    rng = np.random.default_rng(3)
    wins = 0
    for _ in range(1000):
        person = rng.standard_normal((1, 50))
        a, b = (person + np.array(table(rng, 3, 50, (0.3, 0.0, 0.7))) for _ in range(2))
        difference = crossed_difference(a.tolist(), b.tolist(), matched=False)
        assert (difference.p < 0.05) == (difference.low > 0 or difference.high < 0)
        wins += difference.p < 0.05
    assert wins <= 60


def test_an_interval_over_tasks_alone_does_not_hold_it():
    """What the old interval says of a method: its unit is the task, and seeds count as nothing."""
    rng = np.random.default_rng(5)
    tables = [np.array(table(rng, 3, 200, (0.2, 1.0, 1.0))) for _ in range(400)]
    narrow = [mean_interval(each.mean(axis=0).tolist()) for each in tables]
    assert np.mean([each.low <= 0 <= each.high for each in narrow]) < 0.85


def test_one_row_is_the_interval_over_tasks():
    values = [1.5, 0.2, 0.3, 4.7, 0.9, 2.2, 0.4]
    for clusters in (None, ["a", "a", "b", "c", "c", "c", "d"]):
        one, plain = crossed_interval([values], clusters=clusters), mean_interval(values, clusters=clusters)
        assert (one.low, one.high) == pytest.approx((plain.low, plain.high), abs=1e-12)
    same = crossed_interval([values, values, values])
    assert (same.low, same.high) == pytest.approx((mean_interval(values).low, mean_interval(values).high), abs=1e-12)


def test_one_row_on_both_sides_is_the_paired_difference():
    a, b = [1.0, 2.5, 3.0, 5.0, 4.0], [0.5, 2.0, 3.5, 3.0, 3.0]
    crossed, plain = crossed_difference([a], [b], matched=False), paired_difference(a, b)
    assert (crossed.low, crossed.high, crossed.p) == pytest.approx((plain.low, plain.high, plain.p), abs=1e-9)


def test_a_task_that_lacks_a_value_is_left_out_everywhere():
    interval = crossed_interval([[1.0, None, 3.0, 5.0], [2.0, 9.0, 3.0, 4.0]])
    assert (interval.n, interval.mean) == (3, 3.0)
    assert crossed_interval([[None, None], [1.0, None]]).mean is None


def test_shares_stay_between_0_and_1_and_certain_ones_have_a_width():
    high = crossed_interval([[1.0] * 39 + [0.0], [1.0] * 40, [1.0] * 38 + [0.0] * 2])
    assert 0 < high.low < high.mean < high.high <= 1
    assert 0.9 < crossed_interval([[1.0] * 40] * 3).low < 1


def test_values_that_never_differ_prove_nothing():
    nothing = crossed_difference([[2.0, 2.0, 2.0]] * 3, [[1.0, 1.0, 1.0]] * 3, matched=True)
    assert (nothing.mean, nothing.low, nothing.p) == (1.0, None, None)
