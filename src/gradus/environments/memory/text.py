"""Words, counts and answer metrics: one definition of each for retrieval, readers, graders and limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
# What joins two words without a blank, as in a_b or a,b. Not in Ann's, o'clock, J.K, 3.5, 10:30 and 2024-01-05; hyphens are counted apart.
_HYPHEN = r"[-\u2010\u2011](?=[^\W_])"
_HYPHENS = re.compile(rf"(?<=[^\W_])(?!(?<=\d)-\d){_HYPHEN}")
_JOINTS = re.compile(
    rf"(?<=[^\W_])(?!{_HYPHEN}|(?<=\d)[.:,/]\d|['’](?:[sdmt]|re|ve|ll)(?![^\W_])|(?<![^\W_][^\W_])['’.][^\W_])"
    r"(?:[^\w\s]|_)+(?=[^\W_])"
)
_ARTICLES = frozenset({"a", "an", "the"})
_QUESTION_WORDS = ("what", "when", "where", "which", "who", "whose", "whom", "how", "why", "did", "does", "do", "has")
_PRONOUNS = ("i", "me", "my", "you", "your", "he", "she", "him", "her", "his", "we", "our", "us", "they", "them", "s")
_STOPWORDS_EN = "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with"  # Lucene's
_STOPWORDS = frozenset(
    (*_STOPWORDS_EN.split(), *_QUESTION_WORDS, *_PRONOUNS, "had", "have", "were", "been", "from", "am", "m")
)


@lru_cache(maxsize=1 << 15)
def plain_words(text: str) -> tuple[str, ...]:
    """Words in lower case, without punctuation.

    >>> plain_words("Ann's dog, Rex!")
    ('ann', 's', 'dog', 'rex')
    """
    return tuple(_WORD.findall(text.lower()))


@lru_cache(maxsize=1 << 15)
def index_tokens(text: str) -> tuple[str, ...]:
    """The tokens retrieval knows a text by: words without stop words, plurals reduced by Harman's S-stemmer (1991).

    >>> index_tokens("Where do the ponies and the dogs live?")
    ('pony', 'dog', 'live')
    """
    return tuple(_singular(word) for word in plain_words(text) if word not in _STOPWORDS)


def content_words(text: str) -> set[str]:
    """The set of index tokens of a text."""
    return set(index_tokens(text))


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def count_words(text: str) -> int:
    """Number of words: stretches without white space, and those that something joins, as readers split them.

    A hyphen joins one word; but more than one, and one in eight words, is more than text has: they hide words.

    >>> count_words("Ann's dog, at 10:30"), count_words("Ann_likes,tea"), count_words("a well-known dog")
    (4, 3, 3)
    """
    words = len(text.split())
    hyphens = len(_HYPHENS.findall(text))
    return words + len(_JOINTS.findall(text)) + max(0, hyphens - 1 - words // 8)


def count_tokens(text: str) -> int:
    """Number of words and punctuation marks, a stand-in for a model's tokens that needs no model."""
    return len(_TOKEN.findall(text))


@lru_cache(maxsize=1 << 15)
def normalize(text: str) -> str:
    """An answer in lower case without punctuation, articles and extra space, as SQuAD has it (arXiv 1606.05250).

    >>> normalize("The  Red House.")
    'red house'
    """
    return " ".join(word for word in plain_words(text) if word not in _ARTICLES)


def exact_match(prediction: str, gold: str) -> bool:
    """Normalized exact match. An empty or one-letter prediction is never right, unless it is a number."""
    predicted = normalize(prediction)
    return says_something(predicted) and predicted == normalize(gold)


def substring_match(prediction: str, gold: str) -> bool:
    """Whether the normalized gold answer stands inside the prediction, on word bounds (arXiv 2509.25911 has it so)."""
    predicted = normalize(prediction)
    return says_something(predicted) and contains(predicted.split(), normalize(gold).split())


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalized words, as SQuAD has it; in [0, 1].

    >>> round(token_f1("the red old house", "red house"), 2)
    0.8
    """
    predicted, expected = normalize(prediction).split(), normalize(gold).split()
    if not says_something(" ".join(predicted)) or not expected:
        return 0.0
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if not shared:
        return 0.0
    return 2 * shared / (len(predicted) + len(expected))


def contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether ``phrase`` stands in ``words`` as an unbroken stretch; an empty phrase never does."""
    return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(words)} "


def says_something(normalized: str) -> bool:
    """Whether a normalized answer is one: more than a letter, or a number."""
    return len(normalized) > 1 or normalized.isdigit()
