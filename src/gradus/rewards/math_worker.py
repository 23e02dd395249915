"""Runs in a process of its own and says whether two expressions are equal, by Math-Verify. The process has limits, so this has none."""

import logging
import re
from typing import Any

from math_verify import parse, verify

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it warns that it has no limit


def same(answer: str, gold: str) -> bool:
    """Reads a bare expression between dollar signs first, then the answer as it stands."""
    gold_values = _parsed(_delimited(gold))
    for text in (_delimited(answer), answer):
        values = _parsed(text)
        if gold_values and values and verify(gold_values, values, timeout_seconds=None):
            return True
    return False


def _parsed(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]


def _delimited(text: str) -> str:
    """Returns LaTeX between dollar signs; the sign of a power needs braces there."""
    text = re.sub(r"\^(-\d+)", r"^{\1}", text)
    return text if "$" in text else f"${text}$"


HANDLERS = {"same": same}
same("x+1", "x+1")  # the first call loads grammars, which takes seconds
