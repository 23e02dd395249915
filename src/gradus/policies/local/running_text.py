"""The text of an answer while its tokens come, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

_HALF = "\ufffd"


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
        """What the text gains; nothing while the token may be half of a character."""
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


class SettledText:
    """As :class:`RunningText` for texts that only the whole answer shows: ``settled`` gives the beginning that no longer changes."""

    def __init__(self, settled: Callable[[Sequence[int]], str]) -> None:
        self._settled = settled
        self._ids: list[int] = []
        self._told = ""

    def add(self, token: int) -> str:
        """What the text gains."""
        self._ids.append(token)
        now = self._settled(self._ids).rstrip(_HALF)
        if len(now) <= len(self._told):
            return ""
        added, self._told = text_behind(self._told, now), now
        return added


def text_behind(told: str, text: str) -> str:
    """What of ``text`` has not been told. A model that goes on thinking behind its answer may change what was told before."""
    if text.startswith(told):
        return text[len(told) :]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(told, text, strict=False)))
    return text[same:]
