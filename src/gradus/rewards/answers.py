"""Finds the answer in a completion and says whether it is the right one.

Plain numbers are read and compared exactly. For expressions, LaTeX, sets and intervals Math-Verify decides. JSON is compared as
JSON and everything else as words. What cannot be read is not equal.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path

from gradus.core.calls import without_thoughts
from gradus.core.frozen_record import frozen_record
from gradus.sandbox.worker import Worker, WorkerLimit

_CHARACTERS = str.maketrans({
    **dict.fromkeys("−‐‑‒–—―", "-"), **dict.fromkeys("’‘ʼ′", "'"), **dict.fromkeys("“”„«»", '"'), "×": "*", "·": "*", "÷": "/",
})  # fmt: skip
# \frac{1}{2}, and \frac12 as people shorten it.
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{(-?\d+)\}|(\d))\s*(?:\{(-?\d+)\}|(\d))")
_LAYOUT = (  # LaTeX and markdown, and what stands in their place
    (re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    # Degrees; a comma between thousands; 3 \times 10^5, which is 3e5.
    (re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b|°"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\s?(?:\\times|\\cdot|\*|x)\s?10\s?(?:\^|\*\*)\s?(?:\{\s?(-?\d+)\s?\}|(-?\d+))"), r"e\1\2"),
    # Spaces, and brackets around a formula or of another size.
    (re.compile(r"(?<!\\)\\[,;:! ]|\\left(?![a-z])|\\right(?![a-z])|(?<!\\)\\[()\[\]]"), ""),
    (re.compile(r"\\([%$])"), r"\1"),
    # A power as Python writes it; all other double stars are bold.
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


@frozen_record
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
    text = _FRACTION.sub(_slashed, text.translate(_CHARACTERS))
    for pattern, plain in _LAYOUT:
        text = pattern.sub(plain, text)
    return " ".join(text.split())


def _slashed(fraction: re.Match[str]) -> str:
    top, digit, bottom, bottom_digit = fraction.groups()
    return f" {top or digit}/{bottom or bottom_digit} "


def read_number(text: str) -> Number | None:
    """Returns the one plain number that ``text`` states; None if it states none, several, or a sum that was not worked out.

    >>> read_number("$1,234.50").value, read_number("12 + 6 = 18").value, read_number("the answer is 5 km.").unit
    (Fraction(2469, 2), Fraction(18, 1), 'km')
    >>> read_number("18 or 19"), read_number("47 + 38"), read_number("at least 18"), read_number("5 million")
    (None, None, None, None)
    """
    plain = plain_text(text) if len(text) <= _LONGEST else ""
    plain = LEAD.sub("", plain, count=1)
    plain = _CALCULATED.sub("", plain, count=1).strip()
    if plain[:1] == plain[-1:] == "$":
        plain = plain.strip("$ ")  # LaTeX, no currency
    match = _NUMBER.fullmatch(plain)
    if match is None or not _is_unit(match["unit"], bool(match["percent"])):
        return None
    value = _value(match)
    if value is None:
        return None
    unit = match["unit"].split()
    if match["currency"]:
        unit = [_CURRENCIES[match["currency"]]]
    is_negative = bool(match["sign"]) != bool(match["minus"])
    return Number(value=-value if is_negative else value, percent=bool(match["percent"]), unit=" ".join(unit))


def _is_unit(words: str, percent: bool) -> bool:
    """Says whether the words behind a number leave it what it is."""
    if not words:
        return True
    return not percent and _UNIT.fullmatch(words) is not None and _NO_UNIT.search(words) is None


def _value(match: re.Match[str]) -> Fraction | None:
    """Returns the value without its sign; None if there are no digits, or if it is a division that was not worked out."""
    digits, decimals, exponent, bottom = match.group("digits", "decimals", "exponent", "bottom")
    if not (digits or decimals) or (exponent and bottom):
        return None
    whole_part = (digits or "0").replace(",", "")
    value = Fraction(whole_part + (decimals or "")) * Fraction(10) ** int(exponent or 0)
    if not bottom:
        return value
    divisor = int(bottom)
    if divisor == 0:
        return None
    quotient = value / divisor
    # 36/2 was not worked out; 1/2 is a value.
    return None if quotient.denominator == 1 else quotient


_REASONING = re.compile(r"<reasoning>.*?(?:</reasoning>|\Z)", re.DOTALL | re.IGNORECASE)
# The innermost of two that were opened: the first was given up.
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
# Dates, bounds and numbers of another base: Math-Verify would work them out.
_WRITTEN = re.compile(r"\d+(?:[-/.:]\d+){2,}|.*(?:[<>≤≥≠]|\\(?:[lg]eq?|lt|gt|neq?)(?:slant)?(?![a-z])).*|0[xbo]\w+")
# Signs and brackets, lists of numbers, products as 2x, factorials and derivatives, differences of letters, -x.
_MATHEMATICAL = re.compile(
    r"[\\^_=+*/(){}\[\]|∞πθ√]|\d\s*,|\b\d+[a-zA-Z]\b|\d[xyz]|\b(?:\d+|[a-z])[!']|\b[a-z]\s?-\s?[a-z]\b|^-\s?[a-z]\b"
)
# A word of three letters that is neither a command of LaTeX nor the name of a function.
_PROSE = re.compile(
    r"(?<![\\a-z])(?<!\\begin\{)(?<!\\end\{)(?!(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|arcsin|arccos|arctan|max|min|mod|det|lim)(?![a-z]))[a-z]{3,}(?![a-z])",
    re.IGNORECASE,
)
# What no CPU works out: a power of a power of numbers, three powers in a row, long exponents, factorials of long numbers and of factorials.
_UNBOUNDED = re.compile(
    r"\d[\s)}]*(?:(?:\^|\*\*)[\s({]*-?[\d.]+[\s)}]*){2}|(?:(?:\^|\*\*)[\s({]*-?[\w.]+[\s)}]*){3}|(?:\^|\*\*)[\s({]*\d{4}|\d{4}[\s)}]*!|![\s)}]*!"
)
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
# Gold answers that are one letter, in brackets or dollar signs.
_CHOICE = re.compile(r"[\s($\[]*([A-Z])[\s)$.\]]*")
_CHOSEN = re.compile(  # (A) / Option A / A. Paris
    r"(?:(?i:option|choice)\s+)?[$(\[]*(?P<letter>[A-Z])(?:[$)\].:]*|[)\]]*[).:]\s+(?P<text>.+))"
)
# A second choice in the text behind the letter, or a denial. A and I are words too.
_ANOTHER = re.compile(r"(?<![\w'])[B-HJ-Z](?![\w'])|\([A-Z]\)|(?<!\w)[A-Z][).:]|\b(?:not|never|wrong|false)\b")
_UNMARKED = "no answer is marked"
_SENTENCES = re.compile(r"\n+|(?<=[.!?])\s+")
_FRAME = " \t\n*_`.!?"
_STATED = re.compile(
    r"^(?:so|thus|hence|therefore)\b,?\s*|\b(?:is|are|equals|makes)\s+(?:exactly\s+)?|=|:\s", re.IGNORECASE
)
_WAVERS = re.compile(
    r"n['’]t\b|\b(?:not|never|no|nor|neither|cannot|wrong|incorrect|false|or|either|maybe|perhaps|might|could|instead|rather|unless|if)\b",
    re.IGNORECASE,
)
_TOLERANCE = Fraction(1, 10**6)  # Math-Verify's six decimals; above 1 and below 0.001 a share of the gold
_SMALL = Fraction(1, 1000)
_LONGEST_EXPRESSION = 300  # characters that Math-Verify is asked about
_MOST_MARKS = 50  # marked answers that are compared by value


@frozen_record
class AnswerReading:
    """The answer that a completion commits to. ``text`` is None without one, and then ``problem`` says why."""

    text: str | None = None
    problem: str | None = None


def read_answer(completion: str) -> AnswerReading:
    r"""Reads the marked answer: ``<answer>...</answer>``, or ``\boxed{...}``, or the last ``#### ...``, outside the reasoning.

    Several marked answers count as one if they are the same; ``####`` also begins a heading, so only the last one is a mark.

    >>> read_answer("<reasoning>9 * 2</reasoning><answer> 18 </answer>").text
    '18'
    >>> read_answer("<reasoning>it is 18</reasoning>").problem
    'no answer is marked'
    >>> read_answer("<think>perhaps <answer>17</answer></think><answer>18</answer>").text
    '18'
    """
    outside = without_reasoning(completion)
    marked = _ANSWER.findall(outside) or _boxed(outside) or _HASHES.findall(outside)[-1:]
    if not marked:
        return AnswerReading(problem=_UNMARKED)
    answers = [answer.strip() for answer in marked]
    first, *spellings = dict.fromkeys(answers)
    # Each comparison may ask Math-Verify: a text of thousands of marks must not take hours.
    if len(spellings) > _MOST_MARKS or not all(same_answer(spelling, first) for spelling in spellings):
        return AnswerReading(problem="two different answers are marked")
    if not answers[-1]:
        return AnswerReading(problem="the answer is empty")
    return AnswerReading(text=answers[-1])


def read_final(completion: str) -> AnswerReading:
    """Reads the marked answer, or else what the last sentence states: all of it, or what follows its last ``is``, ``=`` or colon.

    A sentence that denies or offers a choice commits to nothing.

    >>> read_final("5 boxes of 9 apples. So there are 5 * 9 = 45.").text, read_final("**The answer is 45**").text
    ('45', '45')
    >>> read_final("The answer is 14, not 45.").problem
    'the last sentence commits to no answer'
    """
    marked = read_answer(completion)
    if marked.text is not None or marked.problem != _UNMARKED:
        return marked
    sentences = [sentence.strip(_FRAME) for sentence in _SENTENCES.split(without_reasoning(completion))]
    last = next(filter(None, reversed(sentences)), "")
    if not last:
        return AnswerReading(problem="the answer is empty")
    if _WAVERS.search(last):
        return AnswerReading(problem="the last sentence commits to no answer")
    return AnswerReading(text=_STATED.split(last)[-1].strip(_FRAME) or last)


def without_reasoning(text: str) -> str:
    """Removes thoughts and ``<reasoning>`` blocks, also those that were cut before they ended."""
    return _REASONING.sub(" ", without_thoughts(text))


def gold_answer(text: str) -> str:
    """Returns the reference answer in a data set's cell: what follows the last ``####`` (GSM8K), else all of it, trimmed."""
    return text.rpartition("####")[2].strip()


def same_answer(answer: str, gold: str) -> bool:
    """Says whether ``answer`` states the same value as ``gold``. Pass the gold answer second: a unit that it has counts.

    >>> same_answer("$1,234.00", "1234"), same_answer("1/2", "0.5"), same_answer("18 or 19", "18")
    (True, True, False)
    >>> same_answer("5 km", "5"), same_answer("5", "5 km"), same_answer("5 m", "5 km")
    (True, True, False)
    """
    if len(answer) > 1000 + 4 * len(gold):
        return False  # no way to write an answer is that much longer
    fenced = _FENCED.fullmatch(answer)
    if fenced:
        answer = fenced[1]
    structure = _json_of(gold)
    if structure:
        is_list = gold[0] == "["  # which may be an interval, too
        return _json_of(answer) == structure or (is_list and _same_expression(answer, gold))
    gold_number = _read_gold(gold)
    if gold_number is not None:
        number = read_number(answer)
        return number is not None and _same_number(number, gold_number)
    return _same_text(_stripped(answer), _stripped(gold))


# Every answer to a task is compared with one gold.
_read_gold = lru_cache(maxsize=65536)(read_number)


def _stripped(text: str) -> str:
    return LEAD.sub("", plain_text(text), count=1).rstrip(" .")


def _same_text(answer: str, gold: str) -> bool:
    """Compares two texts, of which gold is no number: choices, words or expressions."""
    choice = _CHOICE.fullmatch(gold)
    if choice and _chosen(answer) == choice[1]:
        return True
    is_words = _WRITTEN.fullmatch(gold) or _PROSE.search(gold) or not _MATHEMATICAL.search(gold)
    if is_words:
        return _words(answer) == _words(gold) != ""
    return _same_expression(answer, gold)


def _same_number(number: Number, gold: Number) -> bool:
    """A percentage equals its number and its fraction. A unit in small letters may be left out of the answer, and no other."""
    if not _same_unit(number.unit, gold.unit):
        return False
    percents = (number.percent, gold.percent)
    are_integers = number.value.denominator == gold.value.denominator == 1
    if are_integers and not any(percents):
        return number.value == gold.value
    size = abs(gold.value)
    scale = max(size, 1) if size >= _SMALL else size
    # 5% may stand for 5 and for 0.05; both are tried if one of the two is written as a percentage.
    values = [number.value]
    if percents == (True, False):
        values.append(number.value / 100)
    elif percents == (False, True):
        values.append(number.value * 100)
    return any(abs(value - gold.value) <= _TOLERANCE * scale for value in values)


def _same_unit(unit: str, gold_unit: str) -> bool:
    if not gold_unit:
        return True
    if not unit:
        return gold_unit.islower()
    return unit.casefold().rstrip("s") == gold_unit.casefold().rstrip("s")


def _json_of(text: str) -> str | None:
    """A JSON list or object in one spelling; None for any other text."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _chosen(answer: str) -> str | None:
    """The letter of the one choice that an answer names: ``Option A``, ``A. Paris``; None if it names several or none."""
    match = _CHOSEN.fullmatch(answer)
    if match is None or _ANOTHER.search(match["text"] or ""):
        return None
    return match["letter"]


def _words(text: str) -> str:
    """Words for comparison: case, articles, spaces, brackets and end punctuation do not matter."""
    text = re.sub(r"\s*,\s*", ", ", text.casefold()).strip(' .?,;:()[]"*_$')
    if len(text) > 2:  # y' and n! are not y and n
        text = text.strip("!'.")
    return re.sub(r"^(the|an|a)\s+(?=\w{2})", "", text)


def _same_expression(answer: str, gold: str) -> bool:
    """Math-Verify decides. It reads expressions out of any sentence and folds ``x`` and ``X``, so both are refused before."""
    if answer.replace(" ", "") == gold.replace(" ", ""):
        return True
    if _PROSE.search(answer) or _UNBOUNDED.search(answer) or _WRITTEN.fullmatch(answer):
        return False
    if answer.count("'") != gold.count("'"):
        return False
    names = set(_VARIABLE.findall(answer))
    gold_names = set(_VARIABLE.findall(gold))
    in_other_case = {name.swapcase() for name in gold_names - names}
    return not in_other_case & (names - gold_names) and _verify(answer, gold)


def _boxed(text: str) -> list[str]:
    r"""Contents of every ``\boxed{...}`` that is closed, braces balanced; an inner one stands after the one around it."""
    # One walk over all braces: searching for the end of each box anew would take a square of the time.
    opened = {match.end() - 1 for match in re.finditer(r"\\boxed\s*\{", text)}
    stack: list[int] = []
    contents: list[tuple[int, str]] = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            stack.append(match.start())
        elif stack:
            start = stack.pop()
            if start in opened and len(contents) <= _MOST_MARKS:
                contents.append((start, text[start + 1 : match.start()]))
    return [content for _, content in sorted(contents)]


@cache
def _math_verify() -> Worker:
    """Math-Verify in a process of its own: factorials and towers of powers are evaluated by it, and cannot be bounded within."""
    return Worker(Path(__file__).with_name("math_worker.py"), cpu_seconds=2, memory=2 * 2**30)


@lru_cache(maxsize=65536)
def _verify(answer: str, gold: str) -> bool:
    """Math-Verify's judgement; no for what takes more time or memory than an answer may."""
    if len(answer) > _LONGEST_EXPRESSION:
        return False
    try:
        return bool(_math_verify().call("same", answer=answer, gold=gold))
    except WorkerLimit:
        return False
