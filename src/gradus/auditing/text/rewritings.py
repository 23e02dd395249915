"""Rewritings of a right answer that mean the same: what a grader should still accept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from random import Random

from gradus.auditing.text.blind import Operator
from gradus.auditing.text.programs import are_programs
from gradus.auditing.text.shapes import ANY_ORDER, LISTED, Others, is_number, parts
from gradus.auditing.text.tasks import TextTask


def _form(text: str) -> Operator:
    return lambda task, others, rng: text.replace("GOLD", task.gold) if task.gold else None


def _indented(task: TextTask, others: Others, rng: Random) -> str | None:
    """A space before the answer; none before a program or several lines, where it may mean something."""
    gold = task.gold or ""
    return None if "\n" in gold.rstrip() or are_programs([task]) else f" {gold}"


def _if_number(change: Callable[[str], str | None]) -> Operator:
    def make(task: TextTask, others: Others, rng: Random) -> str | None:
        gold = (task.gold or "").strip()
        return change(gold) if is_number(gold) and "e" not in gold.lower() else None

    return make


def _respaced(task: TextTask, others: Others, rng: Random) -> str | None:
    try:
        value = json.loads(task.gold or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list | dict):
        return None
    spaced, tight = json.dumps(value), json.dumps(value, separators=(",", ":"))
    return tight if task.gold == spaced else spaced


_ANY_ORDER = re.compile(rf"(?i){ANY_ORDER}")  # of the answer, not of what is to be used for it
_USED = re.compile(r"(?i)\b(?:us(?:e|es|ed|ing)|appl(?:y|ied)|combin(?:e|ed|ing))\b[^.!?\n]*\border\b")


def _reordered(task: TextTask, others: Others, rng: Random) -> str | None:
    """The elements from the last to the first, where the question allows any order."""
    split = parts((task.gold or "").strip())
    if split is None or not _ANY_ORDER.search(task.prompt) or _USED.search(task.prompt):
        return None
    elements, separator, left, right = split
    if separator not in LISTED or len(set(elements)) < 2 or elements == elements[::-1]:
        return None
    return f"{left}{separator.join(elements[::-1])}{right}"


# Form -> (how it is made, whether a refusal fails the check rather than being listed as strict).
EQUIVALENT: Mapping[str, tuple[Operator, bool]] = {
    "a newline at the end": (_form("GOLD\n"), True),
    "a space at the end": (_form("GOLD "), True),
    "a space before it": (_indented, True),
    "a period at the end": (_form("GOLD."), False),
    "in quotes": (_form('"GOLD"'), False),
    "in bold": (_form("**GOLD**"), False),
    "in a sentence": (_form("The answer is GOLD."), False),
    "in a box": (_form("\\boxed{GOLD}"), False),
    "in a code fence": (_form("```\nGOLD\n```"), False),
    "with .0": (_if_number(lambda gold: None if "." in gold else f"{gold}.0"), False),
    "with trailing zeros": (_if_number(lambda gold: f"{gold}00" if "." in gold else None), False),
    "with a plus sign": (_if_number(lambda gold: None if gold[0] in "-+" else f"+{gold}"), False),
    "with a leading zero": (_if_number(lambda gold: f"0{gold}" if gold[0].isdigit() else None), False),
    "with thousands separators": (
        _if_number(lambda gold: f"{int(gold):,}" if re.fullmatch(r"\d{4,}", gold) else None),
        False,
    ),
    "with a typographic minus": (_if_number(lambda gold: "−" + gold[1:] if gold[0] == "-" else None), False),
    "JSON with other spaces": (_respaced, False),
    "in another order": (_reordered, True),
}
