"""Finding tool calls in what a model wrote.

A call is ``{"name": ..., "arguments": {...}}``: alone, one after another, in a list, fenced, or in ``<tool_call>`` tags. The text
is walked with a real JSON decoder, so that braces, quotes and tags inside strings are just text. What looks like a call but
is none becomes a :class:`BrokenCall` with its reason, and reading goes on behind it. A list of numbers, as in ``see [1]``, is text.
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
class ParsedCall:
    """A call as written; whether its name and arguments are any good is for the tools to say. ``start``, ``end``: characters."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class BrokenCall:
    """Something that was meant as a call and cannot be read as one."""

    code: str
    message: str
    start: int
    end: int


_ATTEMPT = re.compile(r"""\{(?=\s*(?:["'}]|\w+\s*:))|\[(?=\s*[\[{"\d\]])""")
_NEXT = re.compile(r"""\{\s*["']?name["']?\s*:|<tool_call>|```""")
_NEXT_LINE = re.compile(r"(?<!\s)[^\S\n]*+\n\s*+[\[{]")  # begins where white space does, so that it is walked once
_TAG_OPEN, _TAG_CLOSE = "<tool_call>", "</tool_call>"


class _Strict(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__(parse_constant=_no_constant, object_pairs_hook=_unique_keys)


class _Duplicate(ValueError):
    pass


def _no_constant(name: str) -> Any:
    raise _Duplicate(f"{name} is not a JSON value")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Duplicate("a key stands twice in one object")
    return members


_DECODER = _Strict()


def parse_calls(text: str) -> list[ParsedCall | BrokenCall]:
    """All calls of an answer in order, broken ones in their place. No call at all is one broken call that says so.

    A call inside a thought does not count.
    """
    text = blank_thoughts(text)
    calls: list[ParsedCall | BrokenCall] = []
    place, opened = 0, text.find(_TAG_OPEN)
    while place < len(text) and len(calls) <= MAX_CALLS:  # the rest is refused unread
        if 0 <= opened < place:
            opened = text.find(_TAG_OPEN, place)
        match = _ATTEMPT.search(text, place)
        if match is None and opened < 0:
            break
        if match is None or 0 <= opened < match.start():
            place = _read_tag(text, opened, calls)
        else:
            place = _read_json(text, match.start(), calls)
    if not calls:
        kind = ("empty-answer", "the answer is empty") if not text.strip() else ("no-call", "the answer holds no call")
        return [BrokenCall(code=kind[0], message=kind[1], start=0, end=len(text))]
    if len(calls) > MAX_CALLS:
        over = BrokenCall(
            code="many-calls",
            message=f"an answer has at most {MAX_CALLS} calls, got more",
            start=calls[MAX_CALLS].start,
            end=len(text),
        )
        return [*calls[:MAX_CALLS], over]
    return calls


def _read_tag(text: str, opened: int, calls: list[ParsedCall | BrokenCall]) -> int:
    """Check what follows a ``<tool_call>`` tag; the JSON inside is read by the ordinary walk."""
    inside = opened + len(_TAG_OPEN)
    match = _ATTEMPT.search(text, inside)
    closed, reopened = text.find(_TAG_CLOSE, inside), text.find(_TAG_OPEN, inside)
    if match is None or 0 <= closed < match.start() or 0 <= reopened < match.start():
        end = closed + len(_TAG_CLOSE) if closed >= 0 and (reopened < 0 or closed < reopened) else inside
        calls.append(
            BrokenCall(code="empty-tag", message="a tool_call tag holds no JSON object", start=opened, end=end)
        )
        return end
    return _read_json(text, match.start(), calls, tagged=True)


def _read_json(text: str, start: int, calls: list[ParsedCall | BrokenCall], *, tagged: bool = False) -> int:
    """Decode the value at ``start``, note the calls in it, and return where to go on."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        # A list with something broken in it: its members are read one by one, unless each would be too deep again.
        if text[start] == "[" and not isinstance(error, RecursionError):
            return start + 1
        return _note_broken(text, start, error, calls)
    if tagged and text.find(_TAG_CLOSE, end) < 0:
        calls.append(
            BrokenCall(code="open-tag", message="a tool_call tag is not closed behind its JSON", start=start, end=end)
        )
        return end
    if isinstance(value, list) and value and not tagged and all(isinstance(member, int | float) for member in value):
        return end  # a reference or a year in a sentence
    members = value if isinstance(value, list) and value else [value]
    calls.extend(_as_call(member, start, end) for member in members)
    return end


def _note_broken(text: str, start: int, error: Exception, calls: list[ParsedCall | BrokenCall]) -> int:
    following = _NEXT.search(text, start + 1)
    newline = _NEXT_LINE.search(text, start + 1)
    ends = [match.start() for match in (following, newline) if match]
    closed = text.find(_TAG_CLOSE, start)
    if closed >= 0:
        ends.append(closed)
    end = min(ends, default=len(text))
    piece = text[start:end].rstrip()  # by itself, so that what stands behind it does not blur what is wrong with it
    try:
        _DECODER.raw_decode(piece)
    except (ValueError, RecursionError) as alone:
        error = alone
    calls.append(BrokenCall(**_diagnosis(piece, error), start=start, end=end))
    return end


def _diagnosis(piece: str, error: Exception) -> dict[str, str]:
    if isinstance(error, RecursionError):
        return {"code": "too-deep", "message": "a call is nested too deeply"}
    if isinstance(error, _Duplicate):
        return {"code": "bad-value", "message": str(error)}
    what = str(error)
    if "Unterminated string" in what:
        return {"code": "open-string", "message": "a string is not closed"}
    if "Invalid control character" in what:
        return {"code": "raw-control", "message": "a string holds a raw line break or control character ; escape it"}
    if "Invalid \\" in what:
        return {"code": "bad-escape", "message": "a string holds an invalid escape"}
    if re.match(r"\{\s*'", piece):
        return {"code": "single-quotes", "message": "JSON needs double quotes"}
    if piece.count("{") > piece.count("}"):
        return {"code": "open-brace", "message": "a call is not closed with a brace"}
    if re.search(r",\s*[}\]]", piece):
        return {"code": "trailing-comma", "message": "JSON has no comma before a closing brace"}
    return {"code": "bad-json", "message": "a call is not valid JSON"}


def _as_call(value: Any, start: int, end: int) -> ParsedCall | BrokenCall:
    def broken(code: str, message: str) -> BrokenCall:
        return BrokenCall(code=code, message=message, start=start, end=end)

    if not isinstance(value, dict):
        return broken("not-an-object", f"a call must be a JSON object, got {_kind(value)}")
    if "name" not in value:
        return broken("no-name", "a call needs a name")
    if not isinstance(value["name"], str):
        return broken("name-type", f"the name of a call must be a string, got {_kind(value['name'])}")
    extra = [key for key in value if key not in ("name", "arguments")]
    if extra:
        return broken("extra-key", "a call has a name and arguments , nothing else")
    if "arguments" not in value:
        return broken("no-arguments", "a call needs arguments")
    if not isinstance(value["arguments"], dict):
        return broken("arguments-type", f"arguments must be a JSON object, got {_kind(value['arguments'])}")
    return ParsedCall(name=value["name"], arguments=value["arguments"], start=start, end=end)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
