"""The text of an answer: its thoughts in the one form ``<think>``, and what each token adds while it is sampled.

Most templates leave thoughts to the model, which writes ``<think>`` itself. Some end the prompt with an open ``<think>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_HALF = "\ufffd"
_OPEN = re.compile(r"<(think|thinking|thought|reasoning)>\s*$")
_SPOKEN = re.compile(r"</?(think|thinking|thought|reasoning|tools?|tool_call|tool_response)>")


def open_thought(prompt: str) -> str:
    """Returns the tag that the prompt leaves open, with what stands behind it; empty if it leaves none.

    >>> open_thought("<|im_start|>assistant\\n<think>\\n"), open_thought("<|im_start|>assistant\\n")
    ('<think>\\n', '')
    """
    match = _OPEN.search(prompt)
    return match[0] if match else ""


def is_spoken(token: str) -> bool:
    """Says if a token is a tag that belongs to what is said, though some templates write it around messages as well."""
    return _SPOKEN.fullmatch(token) is not None


def close_thought(opened: str, text: str) -> str:
    """Returns what is said behind an open thought: its end first, where ``text`` has no thought of its own.

    >>> close_thought("<think>\\n", "4"), close_thought("<think>\\n", "<think>\\n2 + 2</think>4")
    ('\\n</think>\\n\\n4', '2 + 2</think>4')
    """
    tag = opened.strip()
    if text.startswith(opened):
        return text[len(opened) :]
    if text.lstrip().startswith(tag):
        return text.lstrip()[len(tag) :].lstrip("\n")
    end = tag.replace("<", "</")
    return text if end in text else f"\n{end}\n\n{text}"


class RunningText:
    """Tells what each token adds to a text. A token costs the same however long the text is.

    Texts of tokens do not simply add up: a character may have several tokens, and some tokenizers drop a space at the
    beginning. So new tokens are decoded together with the whole characters before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._whole = 0  # tokens of the window that are known to spell whole characters
        self._told = ""  # of the window's text

    def add(self, token: int) -> str:
        """Returns what the text gains; nothing while the token may be half of a character."""
        self._window.append(token)
        now = self._decode(self._window)
        settled = now.rstrip(_HALF)
        added = settled[len(self._told) :]
        if settled == now:
            self._window = self._window[self._whole :]
            self._whole = len(self._window)
            self._told = self._decode(self._window)
        elif added:
            self._told = settled
        return added
