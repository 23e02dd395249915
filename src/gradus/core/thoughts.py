"""The part of an answer that a model says to itself."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)(think|thinking|thought)>\s*", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """Leave out ``<think>`` blocks: nothing in them is an answer, also if a limit cut them before they ended.

    >>> without_thoughts("<think>it may be 4</think>5"), without_thoughts("it may be 4</think>5"), without_thoughts("<think>4")
    ('5', '5', '')
    """
    return "".join(text[start:end] for start, end in _spoken(text))


def blank_thoughts(text: str) -> str:
    """Put spaces in the place of thoughts, so that what is said aloud stands where it stood.

    >>> blank_thoughts("<think>4?</think>5")
    '                 5'
    """
    kept = [" "] * len(text)
    for start, end in _spoken(text):
        kept[start:end] = text[start:end]
    return "".join(kept)


def _spoken(text: str) -> list[tuple[int, int]]:
    """The stretches of a text that are said aloud."""
    kept: list[tuple[int, int]] = []
    opened: str | None = None
    start = 0  # of what is said aloud
    for tag in _TAG.finditer(text):
        closing, name = tag[1] == "/", tag[2].lower()
        if opened is None and not closing:
            kept.append((start, tag.start()))
            opened = name
        elif closing and opened in (name, None):
            if opened is None:  # some chat templates open the thought
                kept.clear()
            opened, start = None, tag.end()
    return kept if opened is not None else [*kept, (start, len(text))]
