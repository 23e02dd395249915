"""Reads one plain number: an integer, a decimal, a fraction or a percentage, as it stands, in LaTeX or before its unit.

Numbers in words, scales (``5 million``), mixed numbers and sums are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_CHARACTERS = str.maketrans({
    **dict.fromkeys("−‐‑‒–—―", "-"), **dict.fromkeys("’‘ʼ′", "'"), **dict.fromkeys("“”„«»", '"'), "×": "*", "·": "*", "÷": "/",
})  # fmt: skip
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{(-?\d+)\}|(\d))\s*(?:\{(-?\d+)\}|(\d))")
_LAYOUT = (  # LaTeX and markdown, and what stands in their place
    (re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b|°"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\s?(?:\\times|\\cdot|\*|x)\s?10\s?(?:\^|\*\*)\s?(?:\{\s?(-?\d+)\s?\}|(-?\d+))"), r"e\1\2"),
    (re.compile(r"(?<!\\)\\[,;:! ]|\\left(?![a-z])|\\right(?![a-z])|(?<!\\)\\[()\[\]]"), ""),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"(?<=[\w)])\*\*(?=[\w(-])"), "^"),
    (re.compile(r"\*\*|__|`"), ""),
)
LEAD = re.compile(r"(?:so\s+)?(?:the\s+)?(?:correct\s+|right\s+|final\s+)?answer(?:\s+is|\s*:)\s*", re.IGNORECASE)
_CALCULATED = re.compile(r"(?!.*\b(?:or|and|not)\b)[\w\s.+*/^()$-]*=\s*")  # 12 + 6 = 18, x = 18
_NUMBER = re.compile(
    r"""(?P<sign>-)?\s?(?P<currency>(?:US)?\$|€|£)?\s?(?P<minus>-)?
        (?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d+)?(?:[eE](?P<exponent>[-+]?\d{1,3}))?
        (?:\s?/\s?(?P<bottom>-?\d+))?(?:\s?(?P<percent>%|(?i:percent)\b))?(?P<unit>.*?)[\s.]*""",
    re.VERBOSE | re.DOTALL,
)
_CURRENCIES = {"US$": "dollar", "$": "dollar", "€": "euro", "£": "pound"}
# Behind a number: 5m without a space is a unit, 5x is not; with a space, words of which none changes the number.
_UNIT = re.compile(
    r"(?:[kcmµ]?[mgslLWVAJN]|min|hrs?|ft|lbs?|oz|mph|km/h|m/s)(?:\s?\^?[23²³]|\s?\^\{[23]\})?"
    r"|(?:\s+(?:[^\W\d_]{2,}|[mgslLWVAJNCFhd])(?:/[^\W\d_]+)?(?:\s?\^?[23²³]|\s?\^\{[23]\})?){1,4}"
)
_NO_UNIT = re.compile(
    r"\b(?:hundred|thousand|[mb]illion|trillion|dozen|hal(?:f|ves)|thirds?|fourths?|fifths?|tenths?|pi|squared|cubed|factorial|or|and"
    r"|not|never|wrong|incorrect|plus|minus|times|below|under|over|to)\b",
    re.IGNORECASE,
)
_LONGEST = 300  # characters


@dataclass(frozen=True, kw_only=True)
class Number:
    """One exact value. ``percent``: it was written as one, and ``value`` is what stands before the sign.

    ``unit``: the words behind it, or the name of its currency; empty without them.
    """

    value: Fraction
    percent: bool = False
    unit: str = ""


def plain_text(text: str) -> str:
    """Removes LaTeX layout, markdown and typographic variants; numbers and words keep their order.

    >>> plain_text(r"\\boxed{\\frac{1}{2}}"), plain_text("**3 − 4**")
    ('1/2', '3 - 4')
    """
    text = _FRACTION.sub(lambda match: f" {match[1] or match[2]}/{match[3] or match[4]} ", text.translate(_CHARACTERS))
    for pattern, plain in _LAYOUT:
        text = pattern.sub(plain, text)
    return " ".join(text.split())


def read_number(text: str) -> Number | None:
    """Returns the one plain number that ``text`` states; None if it states none, several, or a sum that was not worked out.

    >>> read_number("$1,234.50").value, read_number("12 + 6 = 18").value, read_number("the answer is 5 km.").unit
    (Fraction(2469, 2), Fraction(18, 1), 'km')
    >>> read_number("18 or 19"), read_number("47 + 38"), read_number("at least 18"), read_number("5 million")
    (None, None, None, None)
    """
    plain = plain_text(text) if len(text) <= _LONGEST else ""
    plain = _CALCULATED.sub("", LEAD.sub("", plain, count=1), count=1).strip()
    plain = plain.strip("$ ") if plain[:1] == plain[-1:] == "$" else plain  # LaTeX, no currency
    match = _NUMBER.fullmatch(plain)
    if match is None or not (match["digits"] or match["decimals"]) or (match["exponent"] and match["bottom"]):
        return None
    words = match["unit"]
    if words and (match["percent"] or not _UNIT.fullmatch(words) or _NO_UNIT.search(words)):
        return None
    value = Fraction((match["digits"] or "0").replace(",", "") + (match["decimals"] or ""))
    value *= Fraction(10) ** int(match["exponent"] or 0)
    if match["bottom"]:
        if not (bottom := int(match["bottom"])) or (value / bottom).denominator == 1:
            return None  # 36/2 was not worked out
        value /= bottom
    unit = _CURRENCIES[match["currency"]] if match["currency"] else " ".join(words.split())
    signs = bool(match["sign"]) + bool(match["minus"])
    return Number(value=-value if signs == 1 else value, percent=match["percent"] is not None, unit=unit)
