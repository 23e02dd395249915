"""Intervals over training seeds and tasks: what they become with one seed, and what they promise in repetition."""

import numpy as np
import pytest
from scipy.stats import t as student

from gradus.stats import (
    crossed_difference,
    crossed_interval,
    mean_interval,
    paired_difference,
    score_interval_of_pairs,
    score_p,
)
from gradus.stats.intervals import score_interval

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


def test_a_missing_value_is_missing_for_its_seed_alone():
    interval = crossed_interval([[1.0, None, 3.0, 5.0], [2.0, 9.0, 3.0, 4.0]])
    assert (interval.n, interval.mean) == (4, 3.75)
    quarters = [[None if task % 4 == seed else float(task % 5) for task in range(20)] for seed in range(4)]
    seeds = [[value for value in row if value is not None] for row in quarters]
    mean = np.mean([np.mean(row) for row in seeds])
    interval = crossed_interval(quarters)
    assert (interval.n, interval.mean) == (20, pytest.approx(mean))
    assert interval.low < mean < interval.high
    for matched, other in ((True, [[0.0] * 20] * 4), (False, [[0.0] * 20] * 3), (False, [[0.0] * 20])):
        paired = crossed_difference(quarters, other, matched=matched)
        assert (paired.n, paired.wins, paired.ties, paired.mean) == (20, 16, 4, pytest.approx(mean))
        assert paired.p < 0.05


def test_tasks_that_are_dealt_to_two_seeds_are_as_sure_as_one_seed_that_has_them_all():
    dealt, whole = (
        crossed_interval([[1.0, 5.0, None, None], [None, None, 2.0, 4.0]]),
        mean_interval([1.0, 5.0, 2.0, 4.0]),
    )
    assert (dealt.low, dealt.high) == pytest.approx((whole.low, whole.high))


@pytest.mark.parametrize("solved", [False, True])
def test_intervals_hold_with_missing_values(solved):
    """A quarter is missing by chance, or a value is known if a task is solved, which easy ones are more often."""
    rng = np.random.default_rng(11)
    held = wins = 0
    for _ in range(400):
        ease = rng.standard_normal(50)
        chance = 1 / (1 + np.exp(-ease)) if solved else 0.75
        x, y = (
            np.where(rng.random((3, 50)) < chance, ease + np.array(table(rng, 3, 50, (0.2, 0.0, 1.0))), np.nan).tolist()
            for _ in range(2)
        )
        interval = crossed_interval(x)
        held += interval.low <= (0.4133 if solved else 0.0) <= interval.high
        wins += crossed_difference(x, y, matched=False).p < 0.05
    assert held > 0.93 * 400
    assert wins <= 0.05 * 400


def test_shares_stay_between_0_and_1_and_certain_ones_have_a_width():
    high = crossed_interval([[1.0] * 39 + [0.0], [1.0] * 40, [1.0] * 38 + [0.0] * 2])
    assert 0 < high.low < high.mean < high.high <= 1
    assert 0.9 < crossed_interval([[1.0] * 40] * 3).low < 1
    # Three seeds that solve all or nothing: the quantile is Student's with two degrees of freedom.
    few, expected = (
        crossed_interval([[1.0] * 40, [0.0] * 40, [1.0] * 40]),
        score_interval(2 / 3, 2, student.ppf(0.975, 2)),
    )
    assert (few.low, few.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("seeds", [2, 5])
def test_a_perfect_result_is_as_sure_as_its_tasks(seeds):
    for matched, other in ((True, seeds), (False, seeds), (False, 1)):
        right = crossed_difference([[1.0] * 30] * seeds, [[0.0] * 30] * other, matched=matched)
        assert (right.mean, right.p) == (1.0, score_p(30, 0))
        assert (right.low, right.high) == score_interval_of_pairs(30, 0, 30)
    constant = crossed_difference([[2.5] * 4] * seeds, [[1.0] * 4] * seeds, matched=True)
    assert (constant.mean, constant.low, constant.p) == (1.5, None, None)


def test_nothing_is_proven_by_a_table_without_an_error():
    same = crossed_difference([[2.0, 2.0, 2.0]] * 3, [[2.0, 2.0, 2.0]] * 3, matched=True)
    assert (same.mean, same.low, same.p) == (0.0, None, None)
    turned = [[1.0, 2.0, 3.0], [2.0, 3.0, 1.0]]  # seeds of one mean, tasks closer than noise
    interval = crossed_interval(turned)
    assert (interval.low, interval.high) == pytest.approx(tuple(vars(mean_interval([1.5, 2.5, 2.0])).values())[1:3])
