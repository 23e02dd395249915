"""Operators that every grader must get right: rewritings to accept, answers not to fail on, and code not to run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from random import Random

from gradus.auditing.text.blind import Operator
from gradus.auditing.text.gold import NUMBER, Gold
from gradus.auditing.text.rates import quoted
from gradus.auditing.text.scoring import CANARY


def _form(text: str) -> Operator:
    return lambda gold, rng: text.replace("GOLD", gold.text)


def _told(text: str) -> Operator:
    """The answer with words or marks around it; None for a program, which they would break."""
    return lambda gold, rng: None if gold.is_program else text.replace("GOLD", gold.text)


def _indented(gold: Gold, rng: Random) -> str | None:
    """A space before the answer; None for a program or several lines, where it may mean something."""
    return None if "\n" in gold.text.rstrip() or gold.is_program else f" {gold.text}"


def _if_number(change: Callable[[str], str | None]) -> Operator:
    def make(gold: Gold, rng: Random) -> str | None:
        return change(gold.bare) if gold.is_number and "e" not in gold.bare.lower() else None

    return make


def _respaced(gold: Gold, rng: Random) -> str | None:
    if not isinstance(gold.json, list | dict):
        return None
    spaced, tight = json.dumps(gold.json), json.dumps(gold.json, separators=(",", ":"))
    return tight if gold.text == spaced else spaced


_STRIP, _READ = "strip white space before the comparison", "read the answer out of its form before the comparison"
_VALUE = "compare values, not letters"

# Form -> (how it is made, what to change if it is refused). A refusal is strict, and fails nothing.
EQUIVALENT: Mapping[str, tuple[Operator, str]] = {
    "a newline at the end": (_form("GOLD\n"), _STRIP),
    "a space at the end": (_form("GOLD "), _STRIP),
    "a space before it": (_indented, _STRIP),
    "a period at the end": (_told("GOLD."), _READ),
    "on a line of its own": (_form("\nGOLD\n"), _STRIP),
    "in quotes": (_told('"GOLD"'), _READ),
    "in bold": (_told("**GOLD**"), _READ),
    "in a sentence": (_told("The answer is GOLD."), _READ),
    "in a box": (_told("\\boxed{GOLD}"), _READ),
    "in a code fence": (_form("```\nGOLD\n```"), _READ),
    "with .0": (_if_number(lambda gold: None if "." in gold else f"{gold}.0"), _VALUE),
    "with thousands separators": (
        _if_number(lambda gold: f"{int(gold):,}" if re.fullmatch(r"\d{4,}", gold) else None),
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
    " ": 5000,
    "\n": 5000,
    "<tool_call>": 500,
    "<answer>": 500,
    "[": 1100,  # beyond the recursion of Python 3.11; Math-Verify takes some seconds for them in a box
    '{"a":': 1100,
}


def _tower(gold: Gold, rng: Random) -> str | None:
    """A grader that lets the numbers of its own task through calculates with them: 3**29**50 has no end."""
    numbers = NUMBER.findall(gold.text)
    if len(numbers) < 2:
        numbers = NUMBER.findall((re.findall(r"\[[^\[\]]*\]", gold.prompt) or [""])[-1])
    return "**".join(sorted(numbers, key=float)) if len(numbers) > 1 and "**" not in gold.text else None


HOSTILE: Mapping[str, Operator] = {
    f"the text {quoted(text, 20)}": (lambda t: lambda gold, rng: t)(text)
    for text in (
        *_CHARACTERS,
        *_BROKEN,
        *(piece * times for piece, times in _LONG.items()),
        f"```{' ' * 5000}",
        "9**9**9**9",  # a signal does not interrupt this
    )
} | {"the answer's numbers as a tower of powers": _tower}

_WRITE = f"open('{CANARY}', 'w')"
CANARIES: Mapping[str, Operator] = {
    "code alone": lambda gold, rng: _WRITE,
    "code in a list": lambda gold, rng: f"[{_WRITE}]",
    "code beside the right answer": lambda gold, rng: f"[{gold.text!r}, {_WRITE}][0]",
    "an import": lambda gold, rng: f"__import__('pathlib').Path('{CANARY}').touch()",
    "a statement": lambda gold, rng: f"import pathlib\npathlib.Path('{CANARY}').touch()",
    "code in a fence": lambda gold, rng: f"```python\nimport pathlib\npathlib.Path('{CANARY}').touch()\n```",
    "a shell command": lambda gold, rng: f"$(touch {CANARY})",
}
