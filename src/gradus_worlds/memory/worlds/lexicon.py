"""Invented words: syllables that every world shares, and two sets of words of them that training and testing do not.

A name or a value is two syllables. To store it, a model must copy it: it cannot have learnt a test word by heart.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from gradus.core import child_seed

SYLLABLES: tuple[str, ...] = tuple(consonant + vowel for consonant in "bdgklmnrst" for vowel in "aeiou")
TEST_SHARE = 5  # one word in five is kept for testing


@lru_cache(maxsize=2)
def words_of(split: str, reserved: Collection[str] = frozenset()) -> tuple[str, ...]:
    """All words of a split, ``train`` or ``test``, in lower case; words of the dialogue itself (``reserved``) are in neither."""
    test = split == "test"
    return tuple(
        first + second
        for first in SYLLABLES
        for second in SYLLABLES
        if first != second
        and first + second not in reserved
        and (child_seed(0, "lexicon", first + second) % TEST_SHARE == 0) == test
    )
