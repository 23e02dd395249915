"""Finding the answer in a completion, and saying whether it is the right one.

Plain numbers are read and compared exactly. Everything else that looks like mathematics (LaTeX, expressions, sets, intervals)
is Math-Verify's, as is the notion of equality there (six decimals). Words are compared as words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from gradus.core.thoughts import without_thoughts
from gradus.core.worker import Worker, WorkerLimit
from gradus.rewards.numbered_names import is_named
from gradus.rewards.numbers import (
    CURRENCY,
    UNITS,
    NumberReading,
    is_number_word,
    plain_text,
    read_in_base,
    read_number,
    with_exponents,
    without_powers_of_units,
)
from gradus.rewards.units import contradict, converted

_REASONING = re.compile(r"<reasoning>.*?(?:</reasoning>|\Z)", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
# A date, a range, a bound: Math-Verify would work it out, or read its number alone.
_WRITTEN = re.compile(r"\d+(?:[-/.]\d+){2,}|\d+-\d+|[<>≤≥±]=?\s?[-.\d][^<>≤≥±]*")
_MATHEMATICAL = re.compile(r"[\\^_=+*/{}\[\]|<>≤≥∞πθ√'!]|\d|\([^()]*,")
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|log|exp|sqrt|arcsin|arccos|arctan|max|min|mod|det|lim"
_PROSE = re.compile(rf"(?<![\\a-z])(?!(?:{_FUNCTIONS})\b)[a-z]{{3,}}\b|\b[ap]\.?m\b", re.IGNORECASE)
# A variable in a calculation; in 5 m/s the letters are units.
_OPERATED = re.compile(
    rf"\b[a-zA-Z]\b\s*[-+*^=]|[-+*^]\s*\b[a-zA-Z]\b|\b(?![{UNITS}])[a-zA-Z]\b\s*/|/\s*\b(?![{UNITS}])[a-zA-Z]\b"
)
# p - q; the letters of A-A are no variables, as they are the same.
_LETTERS = re.compile(r"\s*-?\s*[a-z](?:\s*[-+]\s*[a-z])*\s*", re.IGNORECASE)
_ZERO_AND_LETTER = re.compile(r"(?<![\w.,])0[a-zA-Z]")  # Math-Verify would multiply
_NUMERAL = r"[-+]?\d+(?:\.\d+)?(?:/\d+)?%?"
# One item of a row whose order counts: a number, letters with digits behind them (a square, a move, a formula), or a word.
_ITEM = re.compile(rf"(?P<number>{_NUMERAL})|(?P<code>[A-Za-z]+\d\w*'?)|(?P<word>[A-Za-z]+'?)")
_CODE = re.compile(r"(?=\S*\d)[A-Z][A-Za-z0-9]+")  # one that Math-Verify would take for a product of variables
_NAMES = re.compile(rf"(?:{_FUNCTIONS}|ln|pi|[ie])\Z", re.IGNORECASE)
_CHOICE = re.compile(r"[\s($\[]*([A-Z])[\s)$.\]]*")
_CHOSEN = re.compile(  # The answer is (A). / A. Paris
    r"(?:(?i:(?:the\s+)?(?:correct\s+|right\s+|best\s+|final\s+)?(?:answer|option|choice)(?:\s+is|\s*:)?)\s+){0,2}"
    r"[$(\[]*(?P<letter>[A-Z])(?:[$)\].:]*|[)\]]*[).:]\s+(?P<text>.+))"
)
_LETTER = re.compile(r"(?<![\w'’])[B-HJ-Z](?![\w'’])|\([A-Z]\)|(?<!\w)[A-Z][).:]")
_AMOUNT = re.compile(
    rf"{CURRENCY}?\d[\d,]*(?:\.\d+)?(?:\s?(?:[^\W\d_]+(?:/[^\W\d_]+)?|[°¢]\s?[cCfF]?))?", re.IGNORECASE
)
_LISTED = re.compile(rf"{_NUMERAL}(?:\s*,\s*{_NUMERAL})*,?\s+and\s+{_NUMERAL}")  # 3 and 4
_BOTH_SIGNS = re.compile(r"\$?\s*±\s*(\d+(?:\.\d+)?(?:/\d+)?)\s*\$?")
_DENIED = re.compile(r"\b(?:not|never|wrong|incorrect|false|\w+n['’]t)\b", re.IGNORECASE)
_TOLERANCE = Fraction(
    1, 10**6
)  # Math-Verify's default of six decimals; of larger numbers and of very small ones a share
_SMALL = Fraction(1, 1000)
_LONGEST_EXPRESSION = 300  # characters that Math-Verify is asked about
_MOST_MARKS = 50  # marked answers that are compared by value


@dataclass(frozen=True, kw_only=True)
class AnswerReading:
    """``text`` is the answer that the completion commits to, None if there is none, and then ``problem`` says why."""

    text: str | None = None
    problem: str | None = None


def read_answer(completion: str) -> AnswerReading:
    r"""The answer a completion commits to: ``<answer>...</answer>``, or ``\boxed{...}``, or the last ``#### ...``, outside the reasoning.

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
    answers = [answer.strip() for answer in marked]
    if not answers:
        return AnswerReading(problem="no answer is marked")
    others = dict.fromkeys(answer for answer in answers if answer != answers[0])
    if len(others) > _MOST_MARKS or not all(same_answer(answer, answers[0]) for answer in others):
        return AnswerReading(problem="two different answers are marked")
    if not answers[-1]:
        return AnswerReading(problem="the answer is empty")
    return AnswerReading(text=answers[-1])


def _same_names(given: str, gold: str) -> bool:
    """Whether variables have the gold's case and primes, which Math-Verify does not tell apart."""
    names, known = (set(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", text)) for text in (given, gold))
    other_case = {name for name in known - names if name.swapcase() in names - known}
    return not other_case and given.count("'") == gold.count("'")


def without_reasoning(text: str) -> str:
    """Leave out thoughts and ``<reasoning>`` blocks, also those that were cut before they ended."""
    return _REASONING.sub(" ", without_thoughts(text))


def gold_answer(text: str) -> str:
    """The reference answer in a data set's cell: what follows the last ``####`` (GSM8K), else the whole, trimmed."""
    return text.rpartition("####")[2].strip()


def same_answer(given: str, gold: str) -> bool:
    """Whether ``given`` states the same value as ``gold``.

    A percentage equals its number and its fraction: 18 % answers a gold of 18, of 0.18 and of 18 %.

    >>> same_answer("$1,234.00", "1234"), same_answer("1/2", "0.5"), same_answer("18 or 19", "18")
    (True, True, False)
    """
    if len(given) > 1000 + 4 * len(gold):
        return False  # no way to write an answer is that much longer
    if fenced := _FENCED.fullmatch(given):
        given = fenced[1]
    in_base = read_in_base(gold)
    if in_base is not None and re.fullmatch(r"[\s$`]*[-+]?\w+[\s$`.]*", gold):
        return read_in_base(given) == in_base  # the base was asked for: 31 is no answer to 0x1F
    if (choice := _CHOICE.fullmatch(gold)) and _chosen(given) == choice[1]:
        return True
    if (listed := _as_list(gold)) != gold:
        return same_answer(_as_list(given), listed)
    expected = _read_gold(gold)
    if expected.value is not None:
        reading = read_number(given)
        return reading.value is not None and _equal_numbers(reading, expected)
    written = _WRITTEN.fullmatch(plain_text(gold)) is not None or is_named(plain_text(gold))
    prose = written or _PROSE.search(plain_text(gold)) is not None
    letters = _is_sum_of_letters(gold)
    if prose or not (letters or _MATHEMATICAL.search(gold)):
        if _words(given) == _words(gold) and _words(gold):
            return True
    elif plain_text(given).rstrip(" .") == plain_text(gold).rstrip(" ."):
        return True
    if (items := _items(gold)) is not None:
        return _same_items(given, items)
    worked_out = r"[\\^_=+*/(){}\[\]]" if prose else r"[\\^_=+*/(){}\[\]!']|\d"
    if written or _ZERO_AND_LETTER.search(gold) or not (letters or re.search(worked_out, gold)):
        return False
    if _DENIED.search(given) and not _DENIED.search(gold):
        return False  # Math-Verify takes the expression out of any sentence
    return _same_names(given, gold) and _verify(given, gold)


def is_restated(given: str, gold: str, question: str) -> bool:
    """Whether ``given`` is an amount of the question in a unit that the gold answer has not: what was to be converted is copied.

    >>> is_restated("18 m", "18000 mm", "Convert 18 m to mm."), is_restated("1800 cm", "18000 mm", "Convert 18 m to mm.")
    (True, False)
    """
    said = read_number(given)
    if said.value is None or not contradict(said.unit, _read_gold(gold).unit):
        return False
    shown = [read_number(amount) for amount in _AMOUNT.findall(plain_text(question))]
    same = [each for each in shown if each.value == said.value and not contradict(each.unit, said.unit)]
    return any(each.unit.above for each in same)


def _is_sum_of_letters(gold: str) -> bool:
    """Whether ``gold`` is different letters with signs, as ``x - y`` or ``-x``: an expression, though it has no digit."""
    text = plain_text(gold).strip(" $")
    names = re.findall(r"[a-zA-Z]", text)
    return _LETTERS.fullmatch(text) is not None and bool(re.search(r"[-+]", text)) and len(set(names)) == len(names)


def _chosen(given: str) -> str | None:
    """The letter of the one choice that ``given`` names: ``Option A``, ``A. Paris``; None if it names several or none."""
    match = _CHOSEN.fullmatch(plain_text(given))
    text = (match["text"] if match else None) or ""
    return None if match is None or _LETTER.search(text) or _DENIED.search(text) else match["letter"]


def _as_list(text: str) -> str:
    """``3 and 4`` and ``±2`` with commas; anything else as it is."""
    plain = plain_text(text).strip()
    if both := _BOTH_SIGNS.fullmatch(plain):
        return f"-{both[1]}, {both[1]}"
    return re.sub(r",?\s+and\s+", ", ", plain) if _LISTED.fullmatch(plain) else text


def _items(gold: str) -> list[str] | None:
    """The items of ``7 12 33``, ``e4 e5`` or ``H2O``, in their order; None for anything else. Math-Verify would multiply them."""
    items = plain_text(gold).strip(" .").split()
    if len(items) == 1:
        return items if _CODE.fullmatch(items[0]) else None
    kinds = [match.lastgroup if (match := _ITEM.fullmatch(item)) else None for item in items]
    if None in kinds or set(kinds) == {"word"} or any(_NAMES.match(item) for item in items):
        return None
    measured = any(pair == ("number", "word") for pair in pairwise(kinds))  # 2 x, 5 km
    return None if measured else items


def _same_items(given: str, items: list[str]) -> bool:
    """Whether ``given`` ends with the items, separated by blanks or commas, and has nothing but words before them."""
    said = re.sub(r",(?!\d{3}\b)|[,;](?=\s)|[\[\]()]", " ", plain_text(given)).strip(" .").split()
    before, last = said[: -len(items)], said[-len(items) :]
    words = all(re.fullmatch(r"[A-Za-z]{2,}[:,]?|a|[=:]", word, re.IGNORECASE) for word in before)
    equal = len(last) == len(items) and all(map(_same_item, last, items))
    return equal and words and not _DENIED.search(given)


def _same_item(said: str, item: str) -> bool:
    if re.fullmatch(_NUMERAL, said) and re.fullmatch(_NUMERAL, item):
        return read_number(said).value == read_number(item).value
    return said.casefold() == item.casefold()


@lru_cache(maxsize=65536)
def _read_gold(gold: str) -> NumberReading:
    """A gold answer that is all number (and unit); ``(1, 2)`` or ``x + 3`` is not."""
    text = with_exponents(without_powers_of_units(plain_text(gold)))
    if re.search(r"[\[\](){}|\\<>∞]|\d\s*,\s+\d", text) or _OPERATED.search(text) or _WRITTEN.fullmatch(text):
        return NumberReading(problem="not a plain number")
    if is_number_word(text):
        return read_number(text)
    if is_named(text) or not re.fullmatch(rf"[^\w-]*-?\s?{CURRENCY}?[\d.].*", text, re.IGNORECASE):
        return NumberReading(problem="not a plain number")  # compared as a sentence
    return read_number(text)


def _equal_numbers(given: NumberReading, expected: NumberReading) -> bool:
    """Whether they are equal in the units that they name; one that names none has the other's."""
    if contradict(given.unit, expected.unit):
        assert given.value is not None
        amounts = converted(given.value, given.unit, expected.unit)
        return any(_equal_values(NumberReading(value=amount), expected) for amount in amounts)
    return _equal_values(given, expected)


def _equal_values(given: NumberReading, expected: NumberReading) -> bool:
    assert given.value is not None
    assert expected.value is not None
    values = {given.value}
    if given.percent and not expected.percent:
        values.add(given.value / 100)
    if expected.percent and not given.percent:
        values.add(given.value * 100)
    size = abs(expected.value)
    allowed = _TOLERANCE * (max(size, 1) if size >= _SMALL else size)
    if given.value.denominator == 1 and expected.value.denominator == 1 and not given.percent and not expected.percent:
        return given.value == expected.value
    return any(abs(value - expected.value) <= allowed for value in values)


def _boxed(text: str) -> list[str]:
    r"""Contents of every ``\boxed{...}`` that is closed, braces balanced; an inner one stands after the one around it."""
    opened = {match.end() - 1 for match in re.finditer(r"\\boxed\s*\{", text)}
    stack: list[int] = []
    contents: list[tuple[int, str]] = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            stack.append(match.start())
        elif stack and (start := stack.pop()) in opened and len(contents) <= _MOST_MARKS:
            contents.append((start, text[start + 1 : match.start()]))
    return [content for _, content in sorted(contents)]


def _words(text: str) -> str:
    """Words for comparison: case, articles, brackets and end punctuation do not matter."""
    text = plain_text(text).casefold()
    text = re.sub(r"(?<=\d)\s*([ap])\.?\s?m\b\.?", r" \1m", text)  # 5pm, 5 p.m.
    text = re.sub(r"(?<=\d)\s*([abc])\.?\s?([dce])\b(?:\.?\s?(e)\b)?\.?", r" \1\2\3", text)  # 44 B.C.
    text = re.sub(r"\s*,\s*(?=[^\W\d])", ", ", text)
    text = text.strip(' .?,;:()[]"*_')
    if len(text) > 2:  # y' and n! are not y and n
        text = text.strip(" .!?,;:()[]\"'*_")
    return re.sub(r"^(the|an|a)\s+(?=\w{2})", "", text)


@cache
def _math_verify() -> Worker:
    """Math-Verify in a process of its own: factorials and towers of powers are evaluated by it, and cannot be bounded within."""
    return Worker(Path(__file__).with_name("math_worker.py"), cpu_seconds=2, memory=2 * 2**30)


@lru_cache(maxsize=65536)
def _verify(given: str, gold: str) -> bool:
    """Math-Verify's judgement; no for what takes more time or memory than an answer may."""
    if len(given) > _LONGEST_EXPRESSION:
        return False
    try:
        return bool(_math_verify().call("same", given=given, gold=gold))
    except WorkerLimit:
        return False
