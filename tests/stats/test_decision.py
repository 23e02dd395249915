"""One decision for every claim: interval, p and verdict come from one test, and small or skewed samples get none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from gradus.stats import LEAST_UNITS, level_of, paired_difference, score_interval_of_pairs, score_p
from gradus.stats.skew import SkewTest

columns = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, -2.0]), min_size=2, max_size=60)


@given(columns, st.sampled_from([0.9, 0.95, 0.9842, 0.995]), st.sampled_from([None, (-2.0, 1.0)]), st.booleans())
def test_interval_p_and_decision_cannot_disagree(values, level, reward_range, clustered):
    labels = [place // 2 for place in range(len(values))] if clustered else None
    paired = paired_difference(values, [0.0] * len(values), labels, level=level, reward_range=reward_range)
    assert (paired.low is None) == (paired.p is None) == (paired.test is None)
    if paired.low is None:
        assert paired.decision == "too few"
        return
    assert paired.low <= paired.mean + 1e-9
    assert paired.high >= paired.mean - 1e-9
    if abs(paired.p - (1 - level)) > 1e-6:
        leaves_out_0 = paired.low > 0 or paired.high < 0
        assert leaves_out_0 == (paired.p < 1 - level)
        assert leaves_out_0 or paired.decision not in ("better", "worse")


def test_a_disaster_that_was_not_seen_proves_nothing():
    """Twelve equal gains were proven by their signs, in 42 of 100 samples of a policy that gains nothing."""
    assert paired_difference([0.1] * 200, [0.0] * 200).decision == "too few"
    paired = paired_difference([0.1] * 195 + [-1.0] * 5, [0.0] * 200)
    assert (paired.decision, paired.units, paired.differing) == ("too few", 200, 5)


def test_equal_differences_are_proven_by_the_declared_range():
    few = paired_difference([0.1] * 30, [0.0] * 30, reward_range=(0.0, 1.0))
    many = paired_difference([0.1] * 60, [0.0] * 60, reward_range=(0.0, 1.0))
    assert (few.decision, many.decision) == ("undecided", "better")
    unseen = 1 - 0.025 ** (1 / 60)  # the largest share of what 60 tasks do not show
    assert many.low == pytest.approx(0.1 * (1 - unseen) - 1.0 * unseen)


@pytest.mark.parametrize(("n", "decision"), [(LEAST_UNITS - 1, "too few"), (LEAST_UNITS, "better")])
def test_a_mean_needs_forty_units_and_clusters_count_once(n, decision):
    values = np.random.default_rng(0).normal(2.0, 1.0, n)
    assert paired_difference(values, np.zeros(n)).decision == decision
    twice = paired_difference(np.repeat(values, 2), np.zeros(2 * n), np.repeat(np.arange(n), 2).tolist())
    assert (twice.decision, twice.units) == (decision, n)


def test_two_values_are_two_whatever_they_are():
    zeros, wins = [0.0] * 12, [1.0] * 12
    assert paired_difference(wins, zeros).decision == "better"  # 12 of 12
    a, b = [1.0] * 30 + [0.0] * 20, [1.0] * 10 + [0.0] * 40
    plain, doubled = paired_difference(a, b), paired_difference([2 * x for x in a], [2 * x for x in b])
    assert (plain.test, doubled.test, plain.p) == ("values", "values", doubled.p)
    assert (doubled.low, doubled.high) == pytest.approx((2 * plain.low, 2 * plain.high))
    assert paired_difference([0.05] * 12, zeros).test is None  # two differences would be two of many
    assert paired_difference([0.5, 1.0] * 6, [0.5] * 12).test == "mean"  # 0 may not have been seen


def test_the_score_test_rejects_nothing_that_the_exact_test_keeps():
    for differing in range(1, 100):
        for wins in range(differing + 1):
            if score_p(wins, differing - wins) < 0.05:
                assert reference.binomtest(wins, differing).pvalue < 0.05
    low, high = score_interval_of_pairs(7, 7, 149)
    assert low == pytest.approx(-high)


def test_the_interval_reaches_further_towards_the_long_tail_and_p_is_its_level():
    values = np.random.default_rng(1).lognormal(0.0, 1.0, 60)
    for test in (SkewTest.of(values), SkewTest.of(-values)):
        below, above = test.reach(0.025)
        assert (above > below) == (test.bend > 0)
        assert [test.p(below), test.p(-above)] == pytest.approx([0.05, 0.05])
    assert SkewTest.of(np.concatenate([values, -values])).bend == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("shape", ["lognormal", "rare"])
def test_one_sided_differences_are_called_better_as_rarely_as_symmetric_ones(shape):
    """A constant against lognormal rewards was called better in 11 % of cases at one look, a rare disaster in 69 % at five."""
    rng = np.random.default_rng(2)
    wrong = verdicts = 0
    for _ in range(400):
        x = np.exp(0.5) - rng.lognormal(0.0, 1.0, 60)
        if shape == "rare":
            x = np.where(rng.random(60) < 0.1, -1.0, 0.1 / 0.9)
        decision = paired_difference(x, np.zeros(60)).decision
        verdicts += decision != "too few"
        wrong += decision == "better"
    assert verdicts > 40
    assert wrong <= 0.035 * verdicts


def test_levels_of_looks_and_pairs():
    assert level_of() == 0.95
    assert level_of(looks=5) == pytest.approx(1 - 0.0158)
    assert level_of(pairs=10) == pytest.approx(1 - 0.005)
    assert 1 - level_of(looks=5, pairs=10) < 0.005 / 3
