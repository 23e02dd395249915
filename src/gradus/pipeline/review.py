"""Asking a person about answers that no rule settles, and keeping what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from click import Choice
from rich.console import Console

from gradus.core import ConfigError
from gradus.core.files import read_json, write_json

__all__ = ["ask_person", "read_marks"]

_MARKS = {"r": "right", "w": "wrong", "s": None}


def read_marks(path: Path | None) -> dict[str, str]:
    """The marks in a file, key -> right or wrong; empty without one."""
    if path is None or not path.is_file():
        return {}
    marks = read_json(path).get("marks")
    if not isinstance(marks, dict) or not set(marks.values()) <= {"right", "wrong"}:
        raise ConfigError(f"{path} holds no marks; expected {{'marks': {{KEY: 'right' or 'wrong'}}}}")
    return marks


def ask_person(review: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Show every answer without a mark and ask; what was said is written after each, and the next audit counts it."""
    console, marks = Console(), read_marks(path)
    for row in review:
        if row["key"] in marks:
            continue
        console.rule(row["operator"])
        for name in ("prompt", "gold", "answer", "reward"):
            console.print(f"{name}: {row[name]}", markup=False, highlight=False)
        mark = _MARKS[typer.prompt("Is the answer right, wrong, or skip?", type=Choice(list(_MARKS)))]
        if mark is not None:
            marks[row["key"]] = mark
            write_json(path, {"schema": 2, "marks": marks})
