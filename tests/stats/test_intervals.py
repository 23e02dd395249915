"""Intervals against known values, and what they promise in repetition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from gradus.stats import mean_interval, wilson

SKEWED = [1.5, 0.2, 0.3, 4.7, 0.9, 2.2, 0.4, 1.1, 0.6, 3.1, 0.8, 1.9]


def test_student_interval_is_scipys():
    result = mean_interval(SKEWED)
    expected = reference.ttest_1samp(SKEWED, 0).confidence_interval(0.95)
    assert result.mean == pytest.approx(np.mean(SKEWED))
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_undefined_is_none_and_missing_values_are_left_out():
    interval = mean_interval
    assert interval([]).mean is None
    alone = interval([0.3])
    assert (alone.mean, alone.low, alone.high, alone.n) == (0.3, None, None, 1)
    assert interval([0.3, None]).low is None
    assert interval([1.0, None, 2.0, 4.0]) == interval([1.0, 2.0, 4.0])
    assert interval([1.0, 2.0, 3.0], clusters=["a", "a", "a"]).low is None


def test_a_share_has_wilsons_interval_and_stays_in_range():
    result = mean_interval([1.0] * 24 + [0.0] * 3)
    assert (result.low, result.high) == (wilson(24, 27).low, wilson(24, 27).high)
    assert result.high < 1
    assert mean_interval([0.0] * 50).high == wilson(0, 50).high


# As scipy.stats.binomtest(...).proportion_ci(method="wilson") gives them.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.277533), (3, 10, 0.107789, 0.603222), (57, 100, 0.472154, 0.662667)],
)
def test_wilson_known_values(successes, n, low, high):
    result = wilson(successes, n)
    assert (result.low, result.high) == pytest.approx((low, high), abs=1e-5)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_stays_in_range(case):
    result = wilson(*case)
    assert 0 <= result.low <= result.mean <= result.high <= 1


def test_clustered_interval_is_the_sandwich():
    x = [1.0, 1.2, 3.0, 3.1, 2.0, 2.4, 2.2]
    labels = ["a", "a", "b", "b", "c", "c", "c"]
    mean = np.mean(x)
    sums = [np.sum(np.array(x)[[i for i, label in enumerate(labels) if label == c]] - mean) for c in "abc"]
    error = np.sqrt(3 / 2 * np.sum(np.square(sums))) / 7
    half = reference.t.ppf(0.975, 2) * error
    result = mean_interval(x, clusters=labels)
    assert (result.low, result.high) == pytest.approx((mean - half, mean + half))


def _coverage(draw, interval, truth, runs=600):
    rng = np.random.default_rng(11)
    hits = [low <= truth <= high for low, high in (interval(draw(rng)) for _ in range(runs))]
    return np.mean(hits)


def test_student_covers_as_often_as_it_says():
    coverage = _coverage(lambda rng: list(rng.normal(0.4, 1.0, 12)), lambda x: _bounds(mean_interval(x)), 0.4, 2000)
    assert coverage == pytest.approx(0.95, abs=0.015)


def test_clustered_bounds_cover_where_plain_ones_do_not():
    labels = [i // 5 for i in range(100)]

    def draw(rng):
        return list(np.repeat(rng.normal(0, 1, 20), 5) + rng.normal(0, 0.3, 100))

    plain = _coverage(draw, lambda x: _bounds(mean_interval(x)), 0.0)
    clustered = _coverage(draw, lambda x: _bounds(mean_interval(x, clusters=labels)), 0.0)
    assert plain < 0.75
    assert clustered == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("share", "n"), [(0.5, 8), (0.9, 27), (0.97, 60)])
def test_bounds_of_a_share_cover_where_students_do_not(share, n):
    def draw(rng):
        return list((rng.random(n) < share).astype(float))

    assert _coverage(draw, lambda x: _bounds(mean_interval(x)), share, 2000) > 0.92
    if share > 0.95:
        assert _coverage(draw, _student, share, 2000) < 0.9


def test_a_share_over_clusters_covers():
    labels = [i // 4 for i in range(80)]

    def draw(rng):
        return list((rng.random(80) < np.repeat(rng.beta(4, 1, 20), 4)).astype(float))

    assert _coverage(draw, lambda x: _bounds(mean_interval(x, clusters=labels)), 0.8, 2000) > 0.93
    assert _coverage(draw, lambda x: _bounds(mean_interval(x)), 0.8, 2000) < 0.93


def _student(values):
    half = reference.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return np.mean(values) - half, np.mean(values) + half


def _bounds(interval):
    return interval.low, interval.high
