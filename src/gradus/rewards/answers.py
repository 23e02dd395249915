"""Finding the answer in a completion, and saying whether it is the right one.

Plain numbers are read and compared exactly. Everything else that looks like mathematics (LaTeX, expressions, sets, intervals)
is Math-Verify's, as is the notion of equality there (six decimals). Words are compared as words.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from gradus.core.thoughts import without_thoughts
from gradus.rewards.numbers import NumberReading, plain_text, read_number

__all__ = ["AnswerReading", "gold_answer", "read_answer", "same_answer"]

_REASONING = re.compile(r"<reasoning>.*?(?:</reasoning>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_TOLERANCE = Fraction(1, 10**6)  # Math-Verify's default of six decimals, relative for numbers above 1


@dataclass(frozen=True, kw_only=True)
class AnswerReading:
    """``text`` is the answer that the completion commits to, None if there is none, and then ``problem`` says why."""

    text: str | None = None
    problem: str | None = None


def read_answer(completion: str) -> AnswerReading:
    r"""The answer a completion commits to: ``<answer>...</answer>``, or ``\boxed{...}``, or ``#### ...``, outside the reasoning.

    Several marked answers count as one if they are the same.

    >>> read_answer("<reasoning>9 * 2</reasoning><answer> 18 </answer>").text
    '18'
    >>> read_answer("<reasoning>it is 18</reasoning>").problem
    'no answer is marked'
    >>> read_answer("<think>perhaps <answer>17</answer></think><answer>18</answer>").text
    '18'
    """
    outside = _REASONING.sub(" ", without_thoughts(completion))
    marked = _ANSWER.findall(outside) or _boxed(outside) or _HASHES.findall(outside)
    answers = [answer.strip() for answer in marked]
    if not answers:
        return AnswerReading(problem="no answer is marked")
    if any(answer != answers[0] for answer in answers[1:]) and not all(
        same_answer(answer, answers[0]) for answer in answers[1:]
    ):
        return AnswerReading(problem="two different answers are marked")
    if not answers[-1]:
        return AnswerReading(problem="the answer is empty")
    return AnswerReading(text=answers[-1])


def gold_answer(text: str) -> str:
    """The reference answer in a data set's cell: what follows the last ``####`` (GSM8K), else the whole, trimmed."""
    return text.rpartition("####")[2].strip()


def same_answer(given: str, gold: str) -> bool:
    """Whether ``given`` states the same value as ``gold``.

    A percentage equals its number and its fraction: 18 % answers a gold of 18, of 0.18 and of 18 %.

    >>> same_answer("$1,234.00", "1234"), same_answer("1/2", "0.5"), same_answer("18 or 19", "18")
    (True, True, False)
    """
    expected = _read_gold(gold)
    if expected.value is not None:
        reading = read_number(given)
        return reading.value is not None and _equal_numbers(reading, expected)
    if _words(given) == _words(gold) and _words(gold):
        return True
    return _looks_mathematical(gold) and _verify(given, gold)


@lru_cache(maxsize=65536)
def _read_gold(gold: str) -> NumberReading:
    """A gold answer that is all number (and unit); ``(1, 2)`` or ``x + 3`` is not."""
    text = plain_text(gold)
    if re.search(r"[\[\](){}|\\<>∞]|\d\s*,\s+\d", text) or re.search(
        r"\b[a-zA-Z]\b\s*[-+*/^=]|[-+*/^]\s*\b[a-zA-Z]\b", text
    ):
        return NumberReading(problem="not a plain number")
    if not re.fullmatch(r"[^\w-]*-?\s?[\d.].*", text):  # a sentence that holds a number is compared as a sentence
        return NumberReading(problem="not a plain number")
    return read_number(text)


def _equal_numbers(given: NumberReading, expected: NumberReading) -> bool:
    assert given.value is not None
    assert expected.value is not None
    values = {given.value}
    if given.percent and not expected.percent:
        values.add(given.value / 100)
    if expected.percent and not given.percent:
        values.add(given.value * 100)
    allowed = _TOLERANCE * max(abs(expected.value), 1)
    if given.value.denominator == 1 and expected.value.denominator == 1 and not given.percent and not expected.percent:
        return given.value == expected.value
    return any(abs(value - expected.value) <= allowed for value in values)


def _boxed(text: str) -> list[str]:
    r"""Contents of every ``\boxed{...}``, braces balanced."""
    contents = []
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            contents.append(text[match.end() : end - 1])
    return contents


def _words(text: str) -> str:
    """Words for comparison: case, articles, brackets and end punctuation do not matter."""
    text = plain_text(text).casefold().strip(" .!?,;:()[]\"'")
    return re.sub(r"^(the|an|a)\s+(?=\w{2})", "", text)


def _looks_mathematical(gold: str) -> bool:
    return bool(re.search(r"[\\^_=+*/(){}\[\]]|\d", gold))


_LIMIT = (
    20  # seconds; far above what the expressions let through take, so that a busy machine judges as an idle one does
)


@lru_cache(maxsize=4096)
def _verify(given: str, gold: str) -> bool:
    """Math-Verify's judgement. Its time limits are signals, which Python allows on the main thread only."""
    from math_verify import parse, verify

    if len(given) > 300 or re.search(
        r"\d{5,}\s*\}?\)?\s*(?:!|factorial)|\^\s*\{?\s*\d{4,}|\^.*\^.*\^|\*\*.*\*\*", given
    ):
        return False  # towers of powers would be evaluated
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main:
        for name in ("math_verify.parser", "math_verify.grader"):
            logging.getLogger(name).setLevel(logging.ERROR)
    _load_math_verify()
    seconds = _LIMIT if on_main else None
    expected = parse(_delimited(gold), parsing_timeout=seconds)  # pyright: ignore[reportArgumentType]
    for text in (_delimited(given), given):  # an answer in a sentence is read only as it stands
        stated = parse(text, parsing_timeout=seconds)  # pyright: ignore[reportArgumentType]
        if expected and stated and verify(expected, stated, timeout_seconds=seconds):
            return True
    return False


@lru_cache(maxsize=1)
def _load_math_verify() -> None:
    """Judge once without a limit: the first call loads grammars, which takes seconds on a busy machine."""
    from math_verify import parse, verify

    expression = parse("$x+1$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    verify(expression, expression, timeout_seconds=None)


def _delimited(text: str) -> str:
    """Mathematics between dollar signs, where Math-Verify looks for it."""
    return text if "$" in text else f"${text}$"
