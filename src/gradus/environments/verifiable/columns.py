"""Which column holds the gold answers if none is named: the one place that decides it, for every command."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gradus.core.printing import quiet
from gradus.environments.verifiable.items import cell_text, plain

# Names that mean the right answer and nothing else.
ANSWERS = ("answer", "solution", "target", "gold", "ground_truth", "correct_answer", "answerkey")


def gold_column(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """``answer`` if a row has it, else the first column of a usual name in which every row has an answer; None if there is none.

    >>> gold_column([{"prompt": "2 + 2?", "solution": "4"}]), gold_column([{"prompt": "2 + 2?", "category": "sums"}])
    ('solution', None)
    """
    if any("answer" in row for row in rows):
        return "answer"
    names = {str(name).lower(): name for name in reversed(list(rows[0]))} if rows else {}
    usual = [names[name] for name in ANSWERS if name in names]
    return next((name for name in usual if all(cell_text(plain(row.get(name))) for row in rows)), None)


@cache
def tell_column(place: str, column: str, way_out: str) -> None:
    """Say once on standard error which column was taken, if it has another name than ``answer``."""
    if column != "answer" and not quiet():
        print(f"{place}: gold answers are taken from the column {column!r}; {way_out}", file=sys.stderr)
