"""Words, counts and answer metrics: one definition of each for retrieval, readers, graders and limits."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

_WORD = re.compile(r"[^\W_]+")
# Scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters. A mark belongs to the letter before it.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_MARK = "".join(chr(code) for code in range(0x300, 0x3000) if unicodedata.category(chr(code)).startswith("M"))
_UNIT = rf"(?=\w)[{_UNSPACED}][{_MARK}]*"
_RUN = re.compile(rf"(?:{_UNIT})+")
_UNITS = re.compile(_UNIT)
_STRETCH = re.compile(rf"(?:{_UNIT})+|(?![{_UNSPACED}])[^\W_](?:(?![{_UNSPACED}])[^\W_]|[{_MARK}])*")
_MARKS = re.compile(f"[{_MARK}]+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
# What joins two words without a blank, as in a_b or a,b. Not in Ann's, o'clock, J.K, 3.5, 10:30 and 2024-01-05; hyphens are counted apart.
_HYPHEN = r"[-\u2010\u2011](?=[^\W_])"
_HYPHENS = re.compile(rf"(?<=[^\W_])(?!(?<=\d)-\d){_HYPHEN}")
_JOINTS = re.compile(
    rf"(?<=[^\W_])(?!{_HYPHEN}|(?<=\d)[.:,/]\d|['’](?:[sdmt]|re|ve|ll)(?![^\W_])|(?<![^\W_][^\W_])['’.][^\W_])"
    r"(?:[^\w\s]|_)+(?=[^\W_])"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INITIALS = re.compile(r"(?<![^\W_][^\W_])(?<=[^\W\d_])\.(?=[^\W\d_](?![^\W_]))")
_MINUS = re.compile(r"(?<![^\s(\"'“])[-\u2212](?=\d)")
_ARTICLES = frozenset({"a", "an", "the"})
_QUESTION_WORDS = ("what", "when", "where", "which", "who", "whose", "whom", "how", "why", "did", "does", "do", "has")
_PRONOUNS = ("i", "me", "my", "you", "your", "he", "she", "him", "her", "his", "we", "our", "us", "they", "them", "s")
_STOPWORDS_EN = "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with"  # Lucene's
_STOPWORDS = frozenset(
    (*_STOPWORDS_EN.split(), *_QUESTION_WORDS, *_PRONOUNS, "had", "have", "were", "been", "from", "am", "m")
)


def composed(text: str) -> str:
    """A text with one character for a letter and its accent (Unicode's NFC), so that files of any system compare."""
    return unicodedata.normalize("NFC", text)


def spaced(text: str) -> str:
    """A composed text with blanks around what is written in a script without them.

    >>> spaced("Lina住在东京。")
    'Lina 住在东京 。'
    """
    return text if text.isascii() else " ".join(_RUN.sub(r" \g<0> ", composed(text)).split())


def is_run(word: str) -> bool:
    """Whether a word is a stretch of a script without blanks, so that nobody knows where its words end."""
    return not word.isascii() and _RUN.fullmatch(word) is not None


@lru_cache(maxsize=1 << 15)
def plain_words(text: str) -> tuple[str, ...]:
    """Words in lower case, without punctuation; in a script without blanks, characters.

    >>> plain_words("Ann's dog, Rex!")
    ('ann', 's', 'dog', 'rex')
    """
    return tuple(unit for stretch in _stretches(text) for unit in _units(stretch))


def _stretches(text: str) -> list[str]:
    folded = composed(text).lower()
    return (_WORD if folded.isascii() else _STRETCH).findall(folded)


def _units(stretch: str) -> list[str]:
    return [stretch] if stretch.isascii() else _UNITS.findall(stretch) or [stretch]


@lru_cache(maxsize=1 << 15)
def index_tokens(text: str) -> tuple[str, ...]:
    """The tokens retrieval knows a text by: words without stop words, plurals reduced by Harman's S-stemmer (1991). In a script without
    blanks, pairs of neighbors.

    >>> index_tokens("Where do the ponies and the dogs live?")
    ('pony', 'dog', 'live')
    """
    return tuple(
        token for stretch in _stretches(text) if stretch not in _STOPWORDS for token in _pairs(_singular(stretch))
    )


def _pairs(stretch: str) -> list[str]:
    units = _units(stretch)
    return [first + second for first, second in pairwise(units)] or units


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

    A hyphen joins one word; but more than one, and one in eight words, is more than text has: they hide words. Two characters of a
    script without blanks are a word.

    >>> count_words("Ann's dog, at 10:30"), count_words("Ann_likes,tea"), count_words("a well-known dog")
    (4, 3, 3)
    """
    if not text.isascii():
        text = _RUN.sub(
            lambda run: " ".join("x" * ((len(_UNITS.findall(run[0])) + 1) // 2)), _MARKS.sub("", composed(text))
        )
    words = len(text.split())
    hyphens = len(_HYPHENS.findall(text))
    return words + len(_JOINTS.findall(text)) + max(0, hyphens - 1 - words // 8)


def count_tokens(text: str) -> int:
    """Number of words and punctuation marks, a stand-in for a model's tokens that needs no model."""
    return len(_TOKEN.findall(text))


def joined(text: str) -> str:
    """An answer with one word for a number or initials, and a word of its own for a negative number.

    >>> joined("1,000 in the U.S., -5 at 10:30")
    '1000 in the US., minus5 at 10:30'
    """
    return _MINUS.sub("minus", _INITIALS.sub("", _THOUSANDS.sub("", text)))


@lru_cache(maxsize=1 << 15)
def normalize(text: str) -> str:
    """An answer in lower case without punctuation, articles and extra space, as SQuAD has it (arXiv 1606.05250), but a number keeps its sign.

    >>> normalize("The  Red House.")
    'red house'
    """
    return " ".join(word for word in plain_words(joined(text)) if word not in _ARTICLES)


def exact_match(prediction: str, gold: str) -> bool:
    """Normalized exact match. An empty or one-letter prediction is never right, unless it is a number or the gold answer is as short, as
    a grade or a blood type is; then all marks count."""
    predicted, expected = normalize(prediction), normalize(gold)
    if says_something(predicted) and says_something(expected):
        return predicted == expected
    return _letter(prediction) == _letter(gold) != ""


def substring_match(prediction: str, gold: str) -> bool:
    """Whether the normalized gold answer stands inside the prediction, on word bounds (arXiv 2509.25911 has it so). A gold answer of one
    letter stands there as it is written."""
    predicted, expected = normalize(prediction), normalize(gold)
    if not says_something(expected):
        letter = _bare_letter(gold)
        behind = (
            r"(?![^\s.,;:!?])" if expected else r"(?![^\s.,;:!?]|\s+[^\W\dA-Z])"
        )  # an "A" before a small word is an article
        return bool(letter) and re.search(rf"(?<!\S){re.escape(letter)}{behind}", prediction) is not None
    return says_something(predicted) and contains(predicted.split(), expected.split())


def _letter(text: str) -> str:
    return _bare_letter(text).lower()


def _bare_letter(text: str) -> str:
    """An answer without what may stand around it."""
    return composed(text).strip(" .\"'")


def token_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall over normalized words, as SQuAD has it; in [0, 1].

    >>> round(token_f1("the red old house", "red house"), 2)
    0.8
    """
    if exact_match(prediction, gold):
        return 1.0
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
