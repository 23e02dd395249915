"""Reading one number out of a short answer, as a person would who marks homework.

An answer is one value. Units, currency, separators and a sentence around it do not matter; two different values, a range, a
hedge or a sum that was not worked out are no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from unicodedata import normalize

_VULGAR = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅛": "1/8",
    "⅜": "3/8",
    "⅝": "5/8",
    "⅞": "7/8",
}
_SCALES = {
    "k": 10**3,
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = dict(
    zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10), strict=True)
)
_WORDS: dict[str, int] = {**{word: value for value, word in enumerate(_ONES)}, **_TENS}
_HEDGES = re.compile(
    r"\b(or|either|neither|nor|not|isn't|between|at least|at most|more than|less than|fewer than|over|under|plus|minus|times)\b"
)
_NUMBER = re.compile(
    r"""(?P<sign>-\s?)?
        (?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+(?!\d)|\d+)?
        (?P<decimals>\.\d+)?
        (?:\s?[eE](?P<exponent>[+-]?\d{1,3})(?!\w)|\s?x\s?10\^\{?(?P<power>-?\d{1,3})\}?)?
        (?:\s?/\s?(?P<denominator>\d+(?:,\d{3})*))?
        (?P<percent>\s?(?:%|per\s?cent\b|percent\b|pct\b))?
        (?:\s?(?P<scale>k|dozen|hundred|thousand|million|billion|trillion)\b)?""",
    re.VERBOSE,
)
_CURRENCY_BEFORE = re.compile(r"(?:us\$|us|usd|eur|gbp|rs\.?|inr|cad|aud)$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NumberReading:
    """``value`` is exact, None if no single number was meant, and then ``problem`` says why. ``percent``: written as one."""

    value: Fraction | None = None
    percent: bool = False
    problem: str | None = None


def plain_text(text: str) -> str:
    """``text`` without LaTeX dress, markdown and typographic variants; numbers and words keep their order."""
    for sign, ascii_fraction in _VULGAR.items():
        text = text.replace(sign, f" {ascii_fraction}")
    text = re.sub(r"[²³]", "", text)
    text = normalize("NFKC", text).replace("\u2044", "/")
    text = re.sub(r"[\u2212\u2010-\u2015]", "-", text)
    text = re.sub(r"\\(?:boxed|text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[dt]?frac\s*\{?([^{}\s]+?)\}?\s*\{([^{}]+)\}", r" \1/\2", text)
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2", text)
    text = text.replace("{,}", ",").replace(r"\%", "%").replace(r"\$", "$").replace(r"\times", "x")
    text = re.sub(r"\\[,;:! ]|\\left|\\right|\\\(|\\\)|\\\[|\\\]", "", text)
    text = text.replace("×", "x").replace("·", "*").replace("÷", "/")
    text = re.sub(r"(\*\*|__|`)", "", text)
    return " ".join(text.split())


def read_number(text: str) -> NumberReading:
    """The one number that ``text`` states.

    >>> read_number("$1,234.50 dollars").value
    Fraction(2469, 2)
    >>> read_number("18 or 19").problem
    'it hedges'
    >>> read_number("47 + 38").problem
    'a calculation, not its result'
    """
    if len(text) > 300:
        return NumberReading(problem="too long for an answer")
    stated = plain_text(text).strip(" .!?,;:").rpartition("=")[2].strip()
    stated = re.sub(r"\s+and a half\b", " 1/2", stated, flags=re.IGNORECASE)
    if _HEDGES.search(stated.lower()):
        return NumberReading(problem="it hedges")
    if not re.search(r"\d", stated):
        return _read_words(stated)
    return _read_digits(stated)


def _read_digits(text: str) -> NumberReading:
    problem = _calculation(text)
    if problem:
        return NumberReading(problem=problem)
    values: list[Fraction] = []
    percent = False
    for match in _NUMBER.finditer(_join_mixed(text)):
        if match["whole"] is None and match["decimals"] is None:
            continue
        before, after = match.string[: match.start()], match.string[match.end() :]
        if re.search(r"[^\W\d_]$", before) and not _CURRENCY_BEFORE.search(before):
            return NumberReading(problem="a number glued to a word")
        if re.match(r"[:.,]\d", after) or re.search(r"\d[:.,]$", before):
            return NumberReading(problem="not one number")
        value = _value(match)
        if value is None:
            return NumberReading(problem="division by zero")
        values.append(value)
        percent = percent or match["percent"] is not None
    if len(set(values)) != 1:
        return NumberReading(problem="no number" if not values else "more than one value")
    return NumberReading(value=values[0], percent=percent)


def _calculation(text: str) -> str | None:
    """Why ``text`` is a sum that was not worked out, or None. A fraction that is a whole number is such a sum too."""
    bare = re.sub(r"\s?x\s?10\^\{?-?\d{1,3}\}?|\d[eE][+-]\d", "", text)
    if re.search(r"\d\s*[-+*^]\s*[-(]?\s*\$?\d|\d\s*x\s*\d|\d\s*\(\s*\d|sqrt|√|\*\*|\^", bare):
        return "a calculation, not its result"
    for match in re.finditer(r"(\d+(?:,\d{3})*)\s?/\s?(\d+(?:,\d{3})*)", text):
        top, bottom = (int(part.replace(",", "")) for part in match.groups())
        if bottom and top % bottom == 0:
            return "a calculation, not its result"
    return None


def _join_mixed(text: str) -> str:
    """``3 1/2`` becomes the improper fraction ``7/2``, so that it is read as one number."""

    def improper(match: re.Match[str]) -> str:
        whole, top, bottom = (int(part) for part in match.groups())
        return f"{whole * bottom + top}/{bottom}"

    return re.sub(r"(?<![\d.,/])(\d{1,6}) (\d{1,4})/(\d{1,4})(?![\d.,/])", improper, text)


def _value(match: re.Match[str]) -> Fraction | None:
    digits = re.sub(r"[ ,]", "", match["whole"] or "0")
    value = Fraction(digits + (match["decimals"] or ""))
    power = match["exponent"] or match["power"]
    if power is not None:
        value *= Fraction(10) ** int(power)
    if match["denominator"] is not None:
        bottom = int(match["denominator"].replace(",", ""))
        if bottom == 0:
            return None
        value /= bottom
    if match["scale"] is not None:
        value *= _SCALES[match["scale"]]
    return -value if match["sign"] else value


def _read_words(text: str) -> NumberReading:
    """``forty-two eggs`` and the like: the number words must stand together and at the front."""
    words = re.findall(r"[a-z]+", text.lower())
    sign = -1 if words[:1] in (["minus"], ["negative"]) else 1
    words = words[1:] if sign < 0 else words
    total = group = 0
    used = 0
    for word in words:
        if word == "and" and used:
            used += 1
        elif word in _WORDS:
            group, used = group + _WORDS[word], used + 1
        elif word in _SCALES and used and word != "k":
            scale = _SCALES[word]
            if scale <= 100:
                group *= scale
            else:
                total, group = total + group * scale, 0
            used += 1
        else:
            break
    if not used or any(word in _WORDS for word in words[used:]):
        return NumberReading(problem="no number" if not used else "more than one value")
    return NumberReading(value=Fraction(sign * (total + group)))
