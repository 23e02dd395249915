"""Paired differences, several tests at once, power and rank correlation against known values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from gradus.stats import (
    episodes_needed,
    holm,
    paired_difference,
    paired_power,
    score_interval_of_pairs,
    score_p,
    spearman,
    spearman_within,
    units_needed,
)

A = [0.52, 0.61, 0.33, 0.47, 0.80, 0.55, 0.41, 0.66]
B = [0.48, 0.60, 0.35, 0.40, 0.71, 0.55, 0.33, 0.60]
finite = st.floats(-10, 10, allow_subnormal=False).map(lambda x: round(x, 3))


def test_without_skew_a_paired_difference_is_the_paired_t_test():
    difference = np.subtract(A, B)
    mirrored = np.concatenate([difference, 2 * difference.mean() - difference])
    result = paired_difference(mirrored, np.zeros(len(mirrored)))
    expected = reference.ttest_1samp(mirrored, 0.0)
    bounds = expected.confidence_interval(0.95)
    assert result.p == pytest.approx(expected.pvalue, rel=1e-6)
    assert (result.low, result.high) == pytest.approx((bounds.low, bounds.high), abs=1e-9)
    assert result.error == pytest.approx(np.std(mirrored, ddof=1) / np.sqrt(len(mirrored)))


def test_a_pair_with_a_missing_side_is_left_out():
    result = paired_difference([*A, None, 0.9], [*B, 0.1, None])
    assert result == paired_difference(A, B)


def test_rounding_of_averages_is_a_tie():
    left, right = [(0.1 + 0.2 + 0.3) / 3] * 8, [(0.3 + 0.2 + 0.1) / 3] * 8
    assert left != right
    result = paired_difference(left, right)
    assert (result.mean, result.wins, result.ties, result.p) == (0.0, 0, 8, None)
    moved = paired_difference([1e6 + 0.1 * i for i in range(9)], [1e6 - 0.5 + 0.1 * i for i in range(9)])
    assert (moved.wins, moved.low, moved.p) == (9, None, None)
    assert paired_difference([1e-9, 3e-9], [1e-10, 1e-9]).wins == 2
    assert paired_difference([1.0001, 1.0002, 1.0004], [1.0] * 3).low is not None  # small, but no rounding


def test_too_few_pairs_are_undefined():
    for result in (paired_difference([], []), paired_difference([1.0], [0.5])):
        assert (result.low, result.p, result.error, result.decision) == (None, None, None, "too few")
    with pytest.raises(ValueError, match="same seeds"):
        paired_difference([1.0], [])


def test_binary_outcomes_have_mcnemars_p_with_the_correction_for_continuity():
    a, b = [1.0] * 12 + [0.0] * 4 + [1.0] * 10, [0.0] * 12 + [1.0] * 4 + [1.0] * 10
    result = paired_difference(a, b)
    assert result.p == pytest.approx(reference.chi2.sf((12 - 4 - 1) ** 2 / 16, 1))
    assert score_p(3, 3) == 1.0
    assert paired_difference(b, a).low == pytest.approx(-result.high, abs=1e-12)


@pytest.mark.parametrize(
    "table", [(1, 0, 44), (3, 0, 8), (4, 0, 8), (5, 0, 5), (14, 7, 149), (30, 12, 60), (30, 15, 60)]
)
def test_score_bounds_leave_out_0_just_if_mcnemars_score_does(table):
    wins, losses, n = table
    low, high = score_interval_of_pairs(wins, losses, n)
    assert (low > 0) == ((wins - losses - 1) / np.sqrt(wins + losses) > reference.norm.ppf(0.975))
    assert -1 <= low < (wins - losses) / n <= high <= 1


@pytest.mark.parametrize(("n", "chances"), [(10, (0.3, 0.1)), (30, (0.2, 0.2)), (50, (0.02, 0.0)), (100, (0.4, 0.1))])
def test_paired_binary_bounds_cover(n, chances):
    rng = np.random.default_rng(3)
    draws = rng.multinomial(n, [*chances, 1 - sum(chances)], size=2000)
    bounds = {(w, x): score_interval_of_pairs(w, x, n) for w, x, _ in {tuple(d) for d in draws.tolist()}}
    truth = chances[0] - chances[1]
    covered = [bounds[w, x][0] - 1e-9 <= truth <= bounds[w, x][1] + 1e-9 for w, x, _ in draws.tolist()]
    assert np.mean(covered) > 0.93


@pytest.mark.parametrize("n", [2, 5, 20, 100])
def test_binary_policies_that_are_equal_are_called_different_in_at_most_five_percent(n):
    rng = np.random.default_rng(5)
    won = rng.random((2000, 2, n)) < 0.6
    wrong = [score_p(int((a & ~b).sum()), int((b & ~a).sum())) < 0.05 for a, b in won]
    assert np.mean(wrong) <= 0.05


def test_clusters_widen_the_interval():
    rng = np.random.default_rng(0)
    labels = [f"person {i // 4}" for i in range(40)]
    a = list(np.repeat(rng.normal(0.2, 1, 10), 4) + rng.normal(0, 0.1, 40))
    plain, clustered = paired_difference(a, [0.0] * 40), paired_difference(a, [0.0] * 40, labels)
    assert clustered.high - clustered.low > 1.5 * (plain.high - plain.low)
    assert clustered.p > plain.p
    assert (plain.units, clustered.units) == (40, 10)


def test_p_is_uniform_where_nothing_differs():
    rng = np.random.default_rng(4)
    hits = [paired_difference(list(rng.normal(size=15)), list(rng.normal(size=15))).p < 0.05 for _ in range(1500)]
    assert np.mean(hits) == pytest.approx(0.05, abs=0.015)


# By hand: 5 x 0.01, 4 x 0.02, 3 x 0.03, then the running maximum.
def test_holm_known_values():
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.04, None, 0.01]) == [0.04, None, 0.02]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_helps_never_exceeds_bonferroni_and_keeps_order(p):
    adjusted = holm(p)
    for raw, corrected in zip(p, adjusted, strict=True):
        assert raw <= corrected <= min(1.0, len(p) * raw) + 1e-12
    assert [adjusted[i] for i in np.argsort(p, kind="stable")] == sorted(adjusted)


# By direct search with scipy.stats.nct, two-sided, alpha 0.05.
@pytest.mark.parametrize(
    ("effect", "power", "expected"), [(0.5, 0.8, 34), (0.2, 0.8, 199), (0.8, 0.8, 15), (0.5, 0.95, 54), (0.1, 0.8, 787)]
)
def test_episodes_needed_known_values(effect, power, expected):
    assert episodes_needed(effect, 1.0, power=power) == expected


def test_episodes_needed_is_the_smallest_number_that_has_the_power():
    n = episodes_needed(0.02, 0.07)
    assert paired_power(0.02, 0.07, n) >= 0.8 > paired_power(0.02, 0.07, n - 1)


def test_power_is_what_a_simulation_finds():
    rng = np.random.default_rng(8)
    x = rng.normal(0.5, 1.0, size=(4000, 20))
    result = np.mean(reference.ttest_1samp(x, 0, axis=1).pvalue < 0.05)
    assert paired_power(0.5, 1.0, 20) == pytest.approx(result, abs=0.025)


def test_power_under_clusters_counts_clusters_and_a_pilot_seldom_promises_too_much():
    """Twenty persons with four episodes each: in four pilots of five as many persons as it says find the difference."""
    rng = np.random.default_rng(3)

    def draw(persons: int) -> np.ndarray:
        return (0.3 + rng.normal(0, 0.5, persons)[:, None] + rng.normal(0, 0.3, (persons, 4))).ravel()

    labels = [i // 4 for i in range(80)]
    asked = [units_needed(paired_difference(draw(20), np.zeros(80), labels), 0.2) for _ in range(200)]
    spread = np.hypot(0.5, 0.15)
    enough = episodes_needed(0.2, spread)
    assert np.mean([each >= enough for each in asked]) == pytest.approx(0.8, abs=0.1)
    assert min(asked) >= 40  # below, no difference is proven


@given(st.lists(st.tuples(finite, finite), min_size=3, max_size=20))
def test_spearman_is_scipys(pairs):
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    result = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert result is None
    else:
        assert result == pytest.approx(reference.spearmanr(x, y).statistic, abs=1e-9)


def test_within_is_blind_to_differences_between_groups():
    rng = np.random.default_rng(3)
    groups = [g for g in "abc" for _ in range(30)]
    level = np.repeat([0.0, 10.0, 20.0], 30)
    x, y = list(level + rng.normal(size=90)), list(level + rng.normal(size=90))
    assert spearman(x, y) > 0.8
    assert abs(spearman_within(x, y, groups)) < 0.3
    rising = list(-level + np.array(x))
    assert spearman_within(x, rising, groups) == 1.0
