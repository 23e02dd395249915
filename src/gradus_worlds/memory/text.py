"""Words, counts and answer metrics: one definition of each for retrieval, readers, graders and limits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
# A word as a person counts it: Ann's and doesn't are one, and so are 3.5, 10:30 and 2024-01-05.
_COUNTED = re.compile(r"[^\W_]+(?:['’][^\W\d_]{1,2}\b|(?:(?<=\d)[.,:/-]\d+)+)?")
# Joins letters to a word, as in well-known; before a digit it parts two numbers.
_HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W\d_])")
_LONGEST_WORD = 16  # characters; a longer stretch counts as several words
# The comma of 1,000, which says nothing.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A sign at the beginning of a number; the hyphen of 2024-01 is none.
_MINUS = re.compile(r"(?<![^\s(\"'“])[-\u2212](?=\d)")
_ARTICLES = frozenset({"a", "an", "the"})
_QUESTION_WORDS = ("what", "when", "where", "which", "who", "whose", "whom", "how", "why", "did", "does", "do", "has")
_PRONOUNS = ("i", "me", "my", "you", "your", "he", "she", "him", "her", "his", "we", "our", "us", "they", "them", "s")
# Harman's rules, the first that fits.
_PLURALS = (
    (re.compile(r"(.+[^ea])ies"), r"\1y"),
    (re.compile(r"(.+[^aeo])es"), r"\1e"),
    (re.compile(r"(..+[^us])s"), r"\1"),
)
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


@lru_cache(maxsize=1 << 15)
def token_counts(text: str) -> Counter[str]:
    """How often each index token stands in a text; not to be changed."""
    return Counter(index_tokens(text))


def content_words(text: str) -> set[str]:
    """The set of index tokens of a text."""
    return set(index_tokens(text))


def _singular(word: str) -> str:
    for plural, singular in _PLURALS:
        match = plural.fullmatch(word)
        if match:
            return match.expand(singular)
    return word


@lru_cache(maxsize=1 << 15)
def count_words(text: str) -> int:
    """Number of words: each stretch without white space is one, or as many as punctuation joins in it, or one for every 16 characters.

    A hyphen joins one word, as far as there is one in eight words.

    >>> count_words("Ann's dog, at 10:30"), count_words("Ann_likes,tea"), count_words("a well-known dog")
    (4, 3, 3)
    """
    parts = text.split()
    words = 0
    for part in parts:
        words += max(len(_COUNTED.findall(part)), _pieces(part))
    # A limit: to join all words by hyphens must not make a text short.
    joined = min(len(_HYPHEN.findall(text)), 1 + len(parts) // 8)
    return words - joined


def _pieces(word: str) -> int:
    """How many words a stretch without white space is, by its length."""
    return math.ceil(len(word) / _LONGEST_WORD)


def cut_words(text: str, words: int) -> list[str]:
    """A text in pieces of at most ``words`` words; a stretch without white space is never cut.

    >>> cut_words("Ann likes tea", 2)
    ['Ann likes', 'tea']
    """
    return join_words(text.split(), words)


def join_words(parts: Iterable[str], words: int) -> list[str]:
    """Parts in as few pieces of at most ``words`` words as their order allows."""
    pieces: list[str] = []
    for part in parts:
        longer = f"{pieces[-1]} {part}" if pieces else part
        if pieces and count_words(longer) <= words:
            pieces[-1] = longer
        else:
            pieces.append(part)
    return pieces


def count_tokens(text: str) -> int:
    """Number of words and punctuation marks, a stand-in for a model's tokens that needs no model; a long word is several."""
    return sum(map(_pieces, _TOKEN.findall(text)))


@lru_cache(maxsize=1 << 15)
def normalize(text: str) -> str:
    """An answer in lower case without punctuation, articles and extra space, as SQuAD has it (arXiv 1606.05250), but a number keeps its sign.

    >>> normalize("The  Red House."), normalize("1,000"), normalize("-5")
    ('red house', '1000', 'minus5')
    """
    words = plain_words(_MINUS.sub("minus", _THOUSANDS.sub("", text)))
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def exact_match(prediction: str, gold: str) -> bool:
    """Normalized exact match. An empty prediction is never right."""
    return normalize(prediction) == normalize(gold) != ""


def substring_match(prediction: str, gold: str) -> bool:
    """Says whether the normalized gold answer stands inside the prediction, on word bounds (arXiv 2509.25911 has it so)."""
    return contains(normalize(prediction).split(), normalize(gold).split())


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalized words, as SQuAD has it; in [0, 1].

    >>> round(token_f1("the red old house", "red house"), 2)
    0.8
    """
    if exact_match(prediction, gold):
        return 1.0
    predicted = normalize(prediction).split()
    expected = normalize(gold).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if not shared:
        return 0.0
    return 2 * shared / (len(predicted) + len(expected))


def contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    """Says whether ``phrase`` stands in ``words`` as an unbroken stretch; an empty phrase never does."""
    return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(words)} "
