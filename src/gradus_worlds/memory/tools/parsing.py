"""Finding tool calls in what a model wrote.

A call is ``{"name": ..., "arguments": {...}}``: alone, one after another, in a list, fenced, or in ``<tool_call>`` tags. Every JSON object
outside of another one, and an empty list, is read as a call, by a real decoder, so that braces, quotes and tags inside strings are just text. A call that cannot be read keeps its
reason, and reading goes on behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.core import blank_thoughts

MAX_CALLS = 64


@dataclass(frozen=True, kw_only=True)
class WrittenCall:
    """A call as written, from character ``start`` to ``end``; whether its name and arguments are any good is for the tools to say.

    ``wrong`` says why it cannot be read as a call; it is empty if it can.
    """

    start: int
    end: int
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wrong: str = ""


_ATTEMPT = re.compile(r"""\{(?=\s*(?:["'}]|\w+\s*:))|\[(?=\s*\])""")
_NEXT = re.compile(r"""\{\s*["']?name["']?\s*:|</?tool_call>|```|(?<!\s)[^\S\n]*+\n\s*+\{""")
_DECODER = json.JSONDecoder()
# How what the decoder says begins -> the message.
_BROKEN = {
    "Unterminated string": "a string is not closed",
    "Invalid control": "a string holds a raw line break or control character ; escape it",
    "Invalid \\": "a string holds an invalid escape",
}


def parse_calls(text: str) -> list[WrittenCall]:
    """All calls of an answer in order, broken ones in their place. No call at all is one broken call that says so.

    A call inside a thought does not count.
    """
    text = blank_thoughts(text)
    calls: list[WrittenCall] = []
    match = _ATTEMPT.search(text)
    while match is not None and len(calls) < MAX_CALLS:
        calls.append(_read_call(text, match.start()))
        match = _ATTEMPT.search(text, calls[-1].end)
    if match is not None:
        message = f"an answer has at most {MAX_CALLS} calls, got more"
        calls.append(WrittenCall(wrong=message, start=match.start(), end=len(text)))
    if calls:
        return calls
    wrong = "the answer holds no call" if text.strip() else "the answer is empty"
    return [WrittenCall(wrong=wrong, start=0, end=len(text))]


def _read_call(text: str, start: int) -> WrittenCall:
    """Decode the object at ``start``."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError:
        following = _NEXT.search(text, start + 1)
        end = following.start() if following else len(text)
        return WrittenCall(wrong=_diagnosis(text[start:end].rstrip()), start=start, end=end)
    wrong = _wrong(value)
    if wrong:
        return WrittenCall(wrong=wrong, start=start, end=end)
    return WrittenCall(name=value["name"], arguments=value["arguments"], start=start, end=end)


def _diagnosis(piece: str) -> str:
    """Returns what is wrong with a piece by itself, so that what stands behind it does not blur it."""
    try:
        _DECODER.raw_decode(piece)
    except ValueError as error:
        for beginning, diagnosis in _BROKEN.items():
            if str(error).startswith(beginning):
                return diagnosis
    return "a call is not closed with a brace" if piece.count("{") > piece.count("}") else "a call is not valid JSON"


def _wrong(value: Any) -> str | None:
    """Says why a value is not a call."""
    if not isinstance(value, dict):
        return "a call must be a JSON object, got a list"
    if not isinstance(value.get("name"), str):
        return "a call needs a name"
    if not isinstance(value.get("arguments"), dict):
        return "a call needs arguments"
    return "a call has a name and arguments , nothing else" if len(value) > 2 else None
