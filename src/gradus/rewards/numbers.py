"""Reading one number out of a short answer, as a person would who marks homework.

An answer is one value, and the unit beside it so far as that is known. Separators and a sentence around it do not matter; two
different values, a range, a hedge or a sum that was not worked out are no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from unicodedata import normalize

from gradus.rewards.units import NO_UNIT, Unit, unit_of

_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_SHORT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}  # m is metres
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
_PARTS = {  # one of them: "half"; several: "thirds"
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
}  # fmt: skip
_MANY_PARTS = {"halves": 2, **{f"{name}s": parts for name, parts in _PARTS.items() if name != "half"}}
# Behind a number in words they mean that it was not read to its end.
_UNREAD = {"point", "first", "eleventh", "twelfth", *_WORDS, *_SCALES, *_PARTS, *_MANY_PARTS} | {
    f"{word[:-1]}ie{end}" if word in _TENS else f"{word}{end}"
    for word in [*_TENS, *_ONES[13:], "hundred", "thousand", "million"]
    for end in ("th", "ths")
}
CURRENCY = r"(?:(?:us\$|us|usd|eur|gbp|rs\.?|inr|cad|aud|[$€£¥₹])\s?\$?\s?)"
_STATED = rf"(?:[$€£¥₹]\s?)?(?:\.?\d|(?:{'|'.join(_WORDS)})\b)"  # how a number begins
_HEDGES = re.compile(
    r"\b(?:or|either|neither|nor|not|\w+n['’]t|wrong|incorrect|between|at least|at most|more than|less than|fewer than|below zero)\b"
    r"|≠|!=|\\n(?:eq?|ot)\b"
    rf"|\b(?:over|under|plus|times|(?:half|twice|double|triple|thrice|square|cube|root|reciprocal)(?:\s+of)?)\s+{_STATED}|(?:\d|\b(?:{'|'.join(_WORDS)}))\s+(?:plus|minus)\b|[≤≥±∓]|<=?\s*[-+$.]?\d|(?:^|\s)>=?\s*[-+$.]?\d"
)
_SEVERAL = re.compile(  # x = 5, y = 6; 5 and three quarters
    r"=[^=]*(?:[,;\\]|\band\b)[\s$\\]*(?:and\s+)?[^\W\d]\w*\s*="
    rf"|\d\s+and\s+(?!one\s+(?:{'|'.join(_PARTS)})\b)(?:{'|'.join(_WORDS)})\b",
    re.IGNORECASE,
)
# 2 x 10^5 and 10^-3, with nothing worked out in or behind the exponent. A power of ten alone begins no product.
_POWER_OF_TEN = re.compile(
    r"(?:(?<=\d)\s?[x*]\s?|(?<![\w.,^*/)}])(?<![x^*/]\s)(?P<alone>))10\s?\^\s?"
    r"(?:\{\s?(?P<braced>[-+]?\s?\d{1,3})\s?\}|\(\s?(?P<round>[-+]?\s?\d{1,3})\s?\)|(?P<bare>[-+]?\d{1,3}))(?!\d|\.\d|\s?[\^!]|\s?/\s?\d)"
)
# Letters that behind a number are a unit (or a scale); others are variables.
UNITS = "mgslhdwtcpkMKBCFNJWVALTHG"
_EXPRESSION = re.compile(
    rf"[πθ∞√]|\\(?:pi|theta|infty|sqrt|sin|cos|tan|ln|log)(?![a-zA-Z])|\b(?:sin|cos|tan|ln|log|exp|sqrt)\s*[(\d]|\d\s*pi\b"
    rf"|-\s*\(\s*[-.\d]|\d\s+(?:squared|cubed|factorial)\s*\Z"
    rf"|\d[xyz]{{2,}}\b|\d(?![{UNITS}])[a-zA-Z](?![a-zA-Z\d+-])|\d(?![eE][-+]?\d)[a-zA-Z]\s*[-+*^]|\d\s(?![{UNITS}])[a-zA-Z]\s*(?:[-+*/^=)$]|\Z)|^\W*\d+!+\W*$"
)
_NUMBER = re.compile(
    r"""(?P<sign>-\s?)?
        (?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+(?!\d)|\d+)?
        (?P<decimals>(?<!\.)\.\d+)?
        (?:\s?[eE](?P<exponent>[+-]?\d{1,3})(?!\w))?
        (?:\s?/\s?(?P<denominator>\d+(?:,\d{3})*))?
        (?P<percent>\s?(?:%|(?i:per\s?cent|percent|pct)\b))?
        (?:\s?(?P<scale>(?i:dozen|hundred|thousand|million|billion|trillion)\b)|(?P<short>(?:\s?k|[KMB])\b))?""",
    re.VERBOSE,
)
# At most 64 digits: others are no answer, and long ones take time.
_IN_BASE = re.compile(r"(?<![\w.,])0(?:x[0-9a-f]{1,64}|b[01]{1,64}|o[0-7]{1,64})(?!\w)", re.IGNORECASE)
_CURRENCY_BEFORE = re.compile(r"(?:us\$|us|usd|eur|gbp|rs\.?|inr|cad|aud)$", re.IGNORECASE)


_TYPOGRAPHIC = {
    ord(variant): plain for plain, variants in (("-", "−‐‑‒–—―"), ("'", "’‘ʼ′"), ('"', "“”„«»")) for variant in variants
}


@dataclass(frozen=True, kw_only=True)
class NumberReading:
    """``value`` is exact, None if no single number was meant, and then ``problem`` says why. ``percent``: written as one.

    ``unit``: the one that stands beside it.
    """

    value: Fraction | None = None
    percent: bool = False
    unit: Unit = NO_UNIT
    problem: str | None = None


def plain_text(text: str) -> str:
    """``text`` without LaTeX dress, markdown and typographic variants; numbers and words keep their order."""
    text = re.sub("[¼-¾⅐-⅟↉]", r" \g<0>", text)
    text = re.sub(r"[⁰¹²³⁴-⁹⁺⁻]+", lambda match: f"^{match[0]}", text)  # 10² is not 102
    text = normalize("NFKC", text).replace("\u2044", "/")
    text = text.translate(_TYPOGRAPHIC)
    text = re.sub(r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b", "°", text)
    text = re.sub(r"\\(?:boxed|text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[dt]?frac\s*\{?([^{}\s]{1,60}?)\}?\s*\{([^{}]+)\}", r" \1/\2", text)
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2", text)
    text = re.sub(r"\\[dt]?frac\s*\{(-?\d{1,60})\}\s*(\d)", r" \1/\2", text)
    text = re.sub(r"(?<![-\w.,/)])(?<!-\s)(\d{1,60})\s?/\s?-\s?(\d{1,60})(?![\w/])", r"-\1/\2", text)
    text = text.replace("{,}", ",").replace(r"\%", "%").replace(r"\$", "$").replace(r"\pm", "±")
    text = text.replace(r"\times", "x").replace(r"\cdot", "*")
    text = re.sub(r"\\(?:leq?|leqslant)(?![a-zA-Z])|<=", "≤", text)
    text = re.sub(r"\\(?:geq?|geqslant)(?![a-zA-Z])|>=", "≥", text)
    text = re.sub(r"\\[,;:! ]|\\left|\\right|\\\(|\\\)|\\\[|\\\]", "", text)
    text = text.replace("×", "x").replace("·", "*").replace("÷", "/")
    text = re.sub(r"(?<=\d)( ?)\*\*\1(?=[({]?[-+]?\d)", "^", text)
    text = " ".join(re.sub(r"(\*\*|__|`)", "", text).split())
    text = re.sub(rf"(?<![-\w])(?:negative|minus)\s+{CURRENCY}?(?=\.?\d)", "-", text, flags=re.IGNORECASE)
    return re.sub(rf"(?<!\w)-\s?{CURRENCY}(?=\.?\d)", "-", text, flags=re.IGNORECASE)


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
    plain = plain_text(text)
    stated = without_powers_of_units(plain)
    raised = stated != plain
    stated = with_exponents(stated)
    if _HEDGES.search(stated.lower()):
        return NumberReading(problem="it hedges")
    if _SEVERAL.search(stated):
        return NumberReading(problem="more than one value")
    stated = stated.rpartition("=")[2].strip()
    if _EXPRESSION.search(stated):
        return NumberReading(problem="an expression, not a number")
    stated = stated.rstrip(" .!?,;:")
    if not re.search(r"\d", stated):
        return _read_words(stated)
    reading = _read_digits(_join_parts(stated))
    return replace(reading, unit=replace(reading.unit, raised=True)) if raised else reading


def is_number_word(text: str) -> bool:
    """Whether ``text`` is a number in words and nothing else. ``one``, ``third`` and the like may be other words.

    >>> is_number_word("twenty-one"), is_number_word("half"), is_number_word("one"), is_number_word("seven dwarfs")
    (True, True, False, False)
    """
    words = re.findall(r"[a-z]+", text.lower())
    known = {"and", "a", "an", "minus", "negative", *_WORDS, *_SCALES, *_PARTS, *_MANY_PARTS}
    alone = {"one", "a", "an", *_MANY_PARTS, *_PARTS, *_SCALES} - {"half"}
    return (
        bool(words)
        and not re.search(r"[^a-zA-Z\s.-]", text)
        and set(words) <= known
        and (len(words) > 1 or words[0] not in alone)
    )


def read_in_base(text: str) -> tuple[str, Fraction] | None:
    """The letter of the base (x, b or o) and the value, if ``text`` states one number written so: ``0x1F``; else None.

    >>> read_in_base("it is 0x1F"), read_in_base("0x1F or 0x1E"), read_in_base("31")
    (('x', Fraction(31, 1)), None, None)
    """
    bases = {literal[1].lower() for literal in _IN_BASE.findall(text)}
    value = read_number(_IN_BASE.sub(lambda literal: str(int(literal[0], 0)), text)).value if len(bases) == 1 else None
    return None if value is None else (bases.pop(), value)


def with_exponents(text: str) -> str:
    """Powers of ten as in programs: ``2 x 10^5`` is ``2e5``, and ``10^-3`` is ``1e-3``.

    >>> with_exponents("2 x 10^{5}"), with_exponents("10^-3 m"), with_exponents("10^3/2")
    ('2e5', '1e-3 m', '10^3/2')
    """

    def written(match: re.Match[str]) -> str:
        exponent = (match["braced"] or match["round"] or match["bare"]).replace(" ", "")
        return f"{'' if match['alone'] is None else 1}e{exponent}"

    return _POWER_OF_TEN.sub(written, text)


def without_powers_of_units(text: str) -> str:
    """``cm^2`` without the power, which is no second number."""
    return re.sub(rf"((?:[^\W\d_]{{2}}|(?<![^\W\d_])[{UNITS}])\s?)\^\s?[{{(]?[-+]?\d{{1,2}}[}})]?", r"\1", text)


def _read_digits(text: str) -> NumberReading:
    problem = _calculation(text)
    if problem:
        return NumberReading(problem=problem)
    values: list[Fraction] = []
    percent, unit = False, NO_UNIT
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
        unit = unit if unit.above else unit_of(before, after)
        percent = percent or match["percent"] is not None
    if len(set(values)) != 1:
        return NumberReading(problem="no number" if not values else "more than one value")
    return NumberReading(value=values[0], percent=percent, unit=unit)


def _calculation(text: str) -> str | None:
    """Why ``text`` is a sum that was not worked out, or None. A fraction that is a whole number is such a sum too."""
    bare = re.sub(r"(?<=\d)\s?[eE][+-]?\d{1,3}", "", text)
    if re.search(r"\d\s*[-+*^]\s*[-(]?\s*\$?\.?\d|\d\s*x\s*\d|\d\s*\(\s*\d|sqrt|√|\*\*|\^", bare):
        return "a calculation, not its result"
    for match in re.finditer(r"(\d+(?:,\d{3})*)\s?/\s?(\d+(?:,\d{3})*)", text):
        top, bottom = (int(part.replace(",", "")) for part in match.groups())
        if bottom and top % bottom == 0:
            return "a calculation, not its result"
    return None


def _join_parts(text: str) -> str:
    """``5 and a half`` and ``2 thirds`` with digits alone. Three quarters in digits may be coins, and stay."""
    parts = "|".join(_PARTS)
    text = re.sub(
        rf"(?<=\d)\s+and (?:a|one) ({parts})\b",
        lambda match: f" 1/{_PARTS[match[1].lower()]}",
        text,
        flags=re.IGNORECASE,
    )
    many = "|".join(name for name in _MANY_PARTS if name != "quarters")
    return re.sub(
        rf"(?<=\d)\s+({many})\b", lambda match: f"/{_MANY_PARTS[match[1].lower()]}", text, flags=re.IGNORECASE
    )


def _join_mixed(text: str) -> str:
    """``3 1/2`` becomes the improper fraction ``7/2``, so that it is read as one number."""

    def improper(match: re.Match[str]) -> str:
        whole, top, bottom = (int(part) for part in match.groups())
        return f"{whole * bottom + top}/{bottom}"

    return re.sub(r"(?<![\d.,/])(\d{1,6}) (\d{1,4})/(\d{1,4})(?![\d.,/])", improper, text)


def _value(match: re.Match[str]) -> Fraction | None:
    digits = re.sub(r"[ ,]", "", match["whole"] or "0")
    value = Fraction(digits + (match["decimals"] or ""))
    if match["exponent"] is not None:
        value *= Fraction(10) ** int(match["exponent"])
    if match["denominator"] is not None:
        bottom = int(match["denominator"].replace(",", ""))
        if bottom == 0:
            return None
        value /= bottom
    if match["scale"] is not None:
        value *= _SCALES[match["scale"].lower()]
    if match["short"] is not None:
        value *= _SHORT_SCALES[match["short"].strip()]
    return -value if match["sign"] else value


def _read_words(text: str) -> NumberReading:
    """``forty-two eggs``, ``five and a half`` and the like: the number must stand whole and at the front."""
    words = re.findall(r"[a-z]+", text.lower())
    sign = -1 if words[:1] in (["minus"], ["negative"]) else 1
    words = words[1:] if sign < 0 else words
    if words[:1] in (["a"], ["an"]) and words[1:2] and (words[1] in _SCALES or words[1] in _PARTS):
        words[0] = "one"
    elif words[:1] and words[0] in ("half", "dozen"):
        words.insert(0, "one")
    value, used = _cardinal(words)
    if not used:
        return NumberReading(problem="no number")
    rest = words[used:]
    parts = {**_MANY_PARTS, **(_PARTS if value == 1 else {})}
    if rest and rest[0] in parts and "".join(words[:used]) in _WORDS:
        value, rest = value / parts[rest[0]], rest[1:]
    elif rest[:2] in (["and", "a"], ["and", "one"]) and rest[2:3] and rest[2] in _PARTS:
        value, rest = value + Fraction(1, _PARTS[rest[2]]), rest[3:]
    elif rest[:1] == ["and"] and rest[1:2] and rest[1] in _WORDS and rest[2:3] and rest[2] in _MANY_PARTS:
        value, rest = value + Fraction(_WORDS[rest[1]], _MANY_PARTS[rest[2]]), rest[3:]
    if any(word in _UNREAD for word in rest):
        return NumberReading(problem="more than one value")
    percent = rest[:1] == ["percent"] or rest[:2] == ["per", "cent"]
    return NumberReading(value=sign * value, percent=percent, unit=unit_of("", " ".join(rest)))


def _cardinal(words: Sequence[str]) -> tuple[Fraction, int]:
    """The whole number that begins ``words``, and how many of them it takes, 0 if there is none."""
    total = group = used = 0
    largest = 10**15  # the scale before
    for place, word in enumerate(words):
        if word == "and":
            if not (group or total) or group % 100 or words[place - 1] not in _SCALES:
                break
            continue  # counts only if a number follows
        if word in _WORDS:
            low = group % 100
            joins = low in _TENS.values() and 0 < _WORDS[word] < 10 and words[place - 1] in _TENS
            if (low and not joins) or (used and not (total or group)):
                break
            group += _WORDS[word]
        elif word in _SCALES and group and _SCALES[word] <= 100:
            if group % 100 == 0 or words[place - 1] == "dozen":
                break
            group *= _SCALES[word]
        elif word in _SCALES and group and _SCALES[word] < largest:
            largest = _SCALES[word]
            total, group = total + group * largest, 0
        else:
            break
        used = place + 1
    return Fraction(total + group), used
