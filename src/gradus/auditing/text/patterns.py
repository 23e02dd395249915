"""Texts that match a regular expression, one for each of its alternatives."""

from __future__ import annotations

import re
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

SLOT = "\ue000"  # stands in a text for an answer: a character that nobody writes
_MOST = 8
_CATEGORIES = {  # a character of each, and the pattern of all
    "CATEGORY_DIGIT": ("7", r"\d"),
    "CATEGORY_SPACE": (" ", r"\s"),
    "CATEGORY_WORD": ("a", r"\w"),
    "CATEGORY_NOT_DIGIT": ("a", r"\D"),
    "CATEGORY_NOT_SPACE": ("a", r"\S"),
    "CATEGORY_NOT_WORD": (".", r"\W"),
}


def samples(pattern: str, flags: int = 0) -> list[str]:
    """Up to eight texts that the pattern matches; its groups hold what they ask for, or a slot for an answer.

    >>> [each.replace(SLOT, "_") for each in samples("(yes|no)!+")]
    ['yes!', '_!', 'no!']
    """
    try:
        tree: Any = parser.parse(pattern, flags)
    except (re.error, OverflowError, RecursionError):
        return []
    texts: dict[str, None] = {}
    for number in range(2 * _MOST):
        made = _Writer(number // 2, slots=number % 2 == 1).write(tree)
        if number % 2 == 1 or re.search(pattern, made, flags & ~re.DEBUG):
            texts.setdefault(made)
    return [text for text in texts if text.strip()][:_MOST]


class _Writer:
    """Writes one text. ``choice``: which alternative to take, of each branch. ``slots``: write a slot for the first group."""

    def __init__(self, choice: int, *, slots: bool) -> None:
        self._choice, self._slots = choice, slots

    def write(self, tree: Any) -> str:
        return "".join(self._one(str(op), value) for op, value in tree)

    def _one(self, op: str, value: Any) -> str:
        if op == "LITERAL":
            return chr(value)
        if op == "NOT_LITERAL":
            return "b" if value == ord("a") else "a"
        if op == "ANY":
            return "x"
        if op == "IN":
            return self._of_set(value)
        if op == "BRANCH":
            return self.write(value[1][self._choice % len(value[1])])
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            return self.write(inner) * max(least, min(1, most) if self._choice % 2 == 0 else least)
        if op == "SUBPATTERN":
            number, _, _, inner = value
            return SLOT if self._slots and number == 1 else self.write(inner)
        return ""  # places, and what stands around or before them, are not written

    def _of_set(self, members: Any) -> str:
        if members[0][0] is ops.NEGATE:
            return next((each for each in "a0 .!" if not any(_holds(member, each) for member in members[1:])), "")
        op, value = members[self._choice % len(members)]
        if str(op) == "RANGE":
            return chr(value[0])
        return chr(value) if str(op) == "LITERAL" else _CATEGORIES[str(value)][0]


def _holds(member: Any, character: str) -> bool:
    op, value = str(member[0]), member[1]
    if op == "RANGE":
        return value[0] <= ord(character) <= value[1]
    return ord(character) == value if op == "LITERAL" else bool(re.match(_CATEGORIES[str(value)][1], character))
