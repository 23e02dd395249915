"""The text of an answer: its thoughts in the one form ``<think>``, and what each token adds while it is sampled.

Three kinds of templates are told apart. Most leave thoughts to the model, which writes ``<think>`` itself. Some end the prompt
with an open ``<think>``. gpt-oss has channels: ``analysis`` holds the thought and ``final`` the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

_HALF = "\ufffd"
_OPEN = re.compile(r"<(think|thinking|thought|reasoning)>\s*$")
_SPOKEN = re.compile(r"</?(think|thinking|thought|reasoning|tools?|tool_call|tool_response)>")
_THOUGHT = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_CUT = re.compile(r"\s*<think>\n?(?!.*</think>)", re.DOTALL)
_CHANNEL = re.compile(
    r"(?: ?to=[\w.-]+ ?)?<\|channel\|>(\w+)(.*?)<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|<\|channel\|>|\Z)",
    re.DOTALL,
)


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


def channels_from_text(text: str, final: str, between: str) -> str:
    """Writes an answer with a ``<think>`` block in gpt-oss's channels. ``final`` opens the channel of answers; ``between`` ends a message
    and begins the assistant's next one. A thought without an end is all that was said."""
    match = _THOUGHT.match(text)
    if match is None and (cut := _CUT.match(text)):
        return f"<|channel|>analysis<|message|>{text[cut.end() :]}"
    if match is None:
        return final + text
    return f"<|channel|>analysis<|message|>{match[1]}{between}{final}{text[match.end() :]}"


def text_from_channels(text: str) -> str:
    """Returns what was said in channels, with ``<think>`` around the thoughts.

    >>> text_from_channels("<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>4")
    '<think>2 + 2</think>4'
    """
    parts = list(_CHANNEL.finditer(text))
    if not parts:
        return text
    thoughts = "\n".join(part[3] for part in parts if part[1] == "analysis")
    said = "".join(_said(part) for part in parts if part[1] != "analysis")
    cut = parts[-1][1] == "analysis" and parts[-1].end() == len(text)  # no token ended the thought
    return f"<think>{thoughts}{'' if cut else '</think>'}{said}" if thoughts else said


def _said(part: re.Match[str]) -> str:
    """An answer, or a call of a tool with its frame, which names the tool."""
    return part[3] if part[1] == "final" else part[0]


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


def text_behind(told: str, text: str) -> str:
    """Returns what of ``text`` has not been told. A model that goes on thinking behind its answer may change what was told before."""
    if text.startswith(told):
        return text[len(told) :]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(told, text, strict=False)))
    return text[same:]
