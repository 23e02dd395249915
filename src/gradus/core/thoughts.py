"""The part of an answer that a model says to itself."""

from __future__ import annotations

import re

__all__ = ["without_thoughts"]

_TAG = "think|thinking|thought"
_CLOSED = re.compile(rf"<({_TAG})>.*?</\1>\s*", re.DOTALL | re.IGNORECASE)
_OPENED_BEFORE = re.compile(rf".*</({_TAG})>\s*", re.DOTALL | re.IGNORECASE)  # some chat templates open the thought
_NEVER_CLOSED = re.compile(rf"<({_TAG})>.*", re.DOTALL | re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """Leave out ``<think>`` blocks: nothing in them is an answer, also if a limit cut them before they ended.

    >>> without_thoughts("<think>it may be 4</think>5"), without_thoughts("it may be 4</think>5"), without_thoughts("<think>4")
    ('5', '5', '')
    """
    if "think" not in text.lower() and "thought>" not in text.lower():
        return text
    return _NEVER_CLOSED.sub("", _OPENED_BEFORE.sub("", _CLOSED.sub("", text)))
