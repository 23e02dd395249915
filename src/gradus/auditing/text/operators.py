"""Operators that every grader must get right: rewritings to accept, answers not to fail on, and code not to run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from random import Random

from gradus.auditing.text.blind import Operator, Operators, constant
from gradus.auditing.text.gold import NUMBER, Gold
from gradus.auditing.text.near_values import Text
from gradus.auditing.text.rates import quoted
from gradus.auditing.text.scoring import CANARY


def _form(text: str) -> Operator:
    """The answer with marks around it, also if it is a program."""
    return lambda gold, rng: text.replace("GOLD", gold.text)


def _in_words(text: str) -> Operator:
    """The answer with words or marks around it; None for a program, which they would break."""
    return lambda gold, rng: None if gold.is_program else text.replace("GOLD", gold.text)


def _indented(gold: Gold, rng: Random) -> Text:
    """A space before the answer; None for a program or several lines, where it may mean something."""
    if "\n" in gold.text.rstrip() or gold.is_program:
        return None
    return f" {gold.text}"


def _if_number(change: Callable[[str], Text]) -> Operator:
    """A change of an answer that is one number."""

    def make(gold: Gold, rng: Random) -> Text:
        if gold.is_number and "e" not in gold.bare.lower():
            return change(gold.bare)
        return None

    return make


def _respaced(gold: Gold, rng: Random) -> Text:
    """JSON without the spaces that the gold answer has, or with those that it has not."""
    if not isinstance(gold.json, list | dict):
        return None
    spaced = json.dumps(gold.json)  # with spaces behind commas and colons
    if gold.text == spaced:
        return json.dumps(gold.json, separators=(",", ":"))
    return spaced


_STRIP = "strip white space before the comparison"
_READ = "read the answer out of its form before the comparison"
_VALUE = "compare values, not letters"

# Form -> (how it is made, what to change if it is refused). A refusal is strict, and fails nothing.
EQUIVALENT: Mapping[str, tuple[Operator, str]] = {
    "a newline at the end": (_form("GOLD\n"), _STRIP),
    "a space at the end": (_form("GOLD "), _STRIP),
    "a space before it": (_indented, _STRIP),
    "a period at the end": (_in_words("GOLD."), _READ),
    "on a line of its own": (_form("\nGOLD\n"), _STRIP),
    "in quotes": (_in_words('"GOLD"'), _READ),
    "in bold": (_in_words("**GOLD**"), _READ),
    "in a sentence": (_in_words("The answer is GOLD."), _READ),
    "in a box": (_in_words("\\boxed{GOLD}"), _READ),
    "in a code fence": (_form("```\nGOLD\n```"), _READ),
    "with .0": (_if_number(lambda number: None if "." in number else f"{number}.0"), _VALUE),
    "with thousands separators": (
        _if_number(lambda number: f"{int(number):,}" if re.fullmatch(r"\d{4,}", number) else None),
        _VALUE,
    ),
    "JSON with other spaces": (_respaced, _VALUE),
}


_CHARACTERS = "()[{\\\x00∞²٣😀\u202e=,:/×-\n"  # each alone
_BROKEN = (
    "1/0",
    "1e999999",
    "[1, 2",
    "(1",
    "1:",
    "1,",
    ",1",
    '{"a":',
    '{"a": 1}',
    "[null]",
    "a=b",
    "a b c",
    "1 2 3",
    "%s%n",
)
_LONG = {
    "(": 60,
    "x**": 50,
    "a": 2000,
    "9": 5000,  # beyond the digits that int() reads
    " ": 5000,
    "\n": 5000,
    "<tool_call>": 500,
    "<answer>": 500,
    "[": 1100,  # beyond the recursion of Python 3.11; Math-Verify takes some seconds for them in a box
    '{"a":': 1100,
}


def _tower(gold: Gold, rng: Random) -> Text:
    """A grader that lets the numbers of its own task through calculates with them: 3**29**50 has no end."""
    numbers = NUMBER.findall(gold.text)
    # Else the numbers that the question lists, as Countdown does.
    if len(numbers) < 2:
        lists = re.findall(r"\[[^\[\]]*\]", gold.prompt) or [""]
        numbers = NUMBER.findall(lists[-1])
    if len(numbers) > 1 and "**" not in gold.text:
        return "**".join(sorted(numbers, key=float))
    return None


_POWERS = "9**9**9**9"  # a signal does not interrupt this
_TEXTS = (
    *_CHARACTERS,
    *_BROKEN,
    *(piece * times for piece, times in _LONG.items()),
    f"```{' ' * 5000}",
    _POWERS,
)
HOSTILE: Operators = {
    **{f"the text {quoted(text, 20)}": constant(text) for text in _TEXTS},
    "the answer's numbers as a tower of powers": _tower,
}

_WRITE = f"open('{CANARY}', 'w')"
_TOUCH = f"import pathlib\npathlib.Path('{CANARY}').touch()"
CANARIES: Operators = {
    "code alone": constant(_WRITE),
    "code in a list": constant(f"[{_WRITE}]"),
    "code beside the right answer": lambda gold, rng: f"[{gold.text!r}, {_WRITE}][0]",
    "an import": constant(f"__import__('pathlib').Path('{CANARY}').touch()"),
    "a statement": constant(_TOUCH),
    "code in a fence": constant(f"```python\n{_TOUCH}\n```"),
    "a shell command": constant(f"$(touch {CANARY})"),
}
