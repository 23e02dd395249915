"""Rows and rewards to try the commands on: letters to a shop, to be sorted into four departments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from gradus.core import ConfigError

_MATTERS = {"broken": "repair", "late": "delivery", "wrong": "returns", "unpaid": "billing"}
_ITEMS = ("lamp", "chair", "phone", "clock", "table", "radio")
_COLORS = ("red", "green", "blue", "white", "black", "brown")
_REWARDS = '''"""Two rewards for the letters of rows.jsonl: the department of the matter that a letter names first."""


def loose(completions, answer, **columns):
    """1 if the answer names the right department. It can be exploited."""
    return [float(gold in text) for text, gold in zip(completions, answer)]


def exact(completions, answer, **columns):
    """1 if the answer is the right department."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]
'''


def _letters() -> Iterator[dict[str, str]]:
    for color, item in product(_COLORS, _ITEMS):
        for place, (matter, department) in enumerate(_MATTERS.items()):
            other = list(_MATTERS)[(place + 1 + _ITEMS.index(item) % 3) % 4]
            yield {"question": f"the {color} {item} is {matter} .", "answer": department}
            yield {"question": f"the {color} {item} is {matter} and {other} .", "answer": department}


def write_letters(folder: Path, *, overwrite: bool) -> list[str]:
    """Writes rows.jsonl and mine.py into the folder; returns a line about each. Raises ConfigError if one exists."""
    rows = [json.dumps(row) for row in _letters()]
    texts = {"rows.jsonl": "\n".join(rows) + "\n", "mine.py": _REWARDS}
    existing = [name for name in texts if (folder / name).exists()]
    if existing and not overwrite:
        raise ConfigError(f"{' and '.join(existing)} exist already; --overwrite replaces them")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [
        f"rows.jsonl: {len(rows)} letters, each with its department",
        "mine.py: the rewards loose, which can be exploited, and exact",
    ]
