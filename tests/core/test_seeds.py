"""Keys, not streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import child_rng, child_seed

KEYS = st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4)


@given(st.integers(), KEYS, KEYS)
def test_different_keys_differ_and_equal_keys_agree(seed, one, other):
    same = [(type(key), key) for key in one] == [(type(key), key) for key in other]
    assert (child_seed(seed, *one) == child_seed(seed, *other)) == same


def test_the_same_in_every_process_and_version():
    assert child_seed(7, "noise", 3) == 166997804288132978435104556064411383883


def test_draws_are_spread():
    draws = [child_rng(0, index).random() for index in range(2000)]
    assert abs(sum(draws) / len(draws) - 0.5) < 0.03


@pytest.mark.parametrize("key", [1.5, None, True, b"x"])
def test_other_types_are_refused(key):
    with pytest.raises(TypeError, match="int or str"):
        child_seed(0, key)
