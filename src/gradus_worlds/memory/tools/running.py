"""The tools of a policy: calls found in what it wrote, strict checks of their arguments, and what it is told back.

A call is ``{"name": ..., "arguments": {...}}``: alone, one after another, in a list, fenced, or in ``<tool_call>`` tags. Every JSON object
outside of another one, and an empty list, is read as a call, by a real decoder, so that braces, quotes and tags inside strings are just text. A call that cannot be read keeps its
reason, and reading goes on behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.core import blank_thoughts
from gradus_worlds.memory.store.memory import Entry, Memory, RefusedCall

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


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of one call. ``message`` says why it was refused; ``start`` and ``end`` are its characters."""

    name: str
    ok: bool
    message: str
    start: int
    end: int
    entry_id: int | None = None
    bank: str | None = None
    content: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Tool:
    """The function that runs a call. ``needed``: the arguments that it must have. ``known``: others that it may have."""

    run: Callable[[Memory, Mapping[str, Any], int | None], Entry | str | None]
    needed: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def _insert(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    options = {name: given[name] for name in ("timestamp", "importance") if name in given}
    return memory.insert(given["category"], given["content"], source=source, **options)


def _named(memory: Memory, given: Mapping[str, Any]) -> int:
    """The number of the entry that a call is about, which the call gives or names by what it says."""
    return given["entry_id"] if "entry_id" in given else memory.named(given["category"], given["old_content"]).id


def _update(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    return memory.update(given["category"], _named(memory, given), given["new_content"], source=source)


def _delete(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    return memory.delete(given["category"], _named(memory, given))


_NAMES = ("entry_id", "old_content")  # two ways to say which entry
TOOLS: Mapping[str, Tool] = {
    "memory_insert": Tool(run=_insert, needed=("category", "content"), known=("timestamp", "importance")),
    "memory_update": Tool(run=_update, needed=("category", "new_content"), known=_NAMES),
    "memory_delete": Tool(run=_delete, needed=("category",), known=_NAMES),
    "core_memory_update": Tool(run=lambda memory, given, _: memory.set_core(given["content"]), needed=("content",)),
    "memory_noop": Tool(run=lambda *_: None),
}


def run_calls(
    memory: Memory, answer: str, *, source: int | None = None, fails: Callable[[], bool] = lambda: False
) -> list[CallResult]:
    """Carry out all calls of an answer, in order. A broken one fails alone; ``source`` is the chunk that was read.

    ``fails`` is asked before each well-formed call that would change the memory: whether it is refused all the same.
    """
    return [_run(memory, call, source, fails) for call in parse_calls(answer)]


def _run(memory: Memory, call: WrittenCall, source: int | None, fails: Callable[[], bool]) -> CallResult:
    def result(message: str, *, ok: bool = False, **told: Any) -> CallResult:
        return CallResult(name=call.name, ok=ok, message=message, start=call.start, end=call.end, **told)

    if call.wrong:
        return result(call.wrong)
    try:
        tool = TOOLS.get(call.name)
        if tool is None:
            raise RefusedCall(f"unknown tool {call.name[:40]} ; there are {' '.join(TOOLS)}")
        given = _checked(call.name, tool, call.arguments)
        if given and fails():
            about = " ".join(str(given.get("content", given.get("old_content", "it"))).split()[:2])
            raise RefusedCall(f"there was no answer ; {about} is not in memory")
        done = tool.run(memory, given, source)
    except RefusedCall as refused:
        return result(str(refused))
    if isinstance(done, Entry):
        return result("done", ok=True, entry_id=done.id, bank=done.bank, content=done.content)
    return result("done", ok=True, content=done)


def _checked(name: str, tool: Tool, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments, an entry's digits as its number."""
    takes = (*tool.needed, *tool.known)
    for argument in given:
        if argument not in takes:
            raise RefusedCall(f"{name} takes {' '.join(takes) or 'no arguments'} , not {argument[:40]}")
    for argument in tool.needed:
        if argument not in given:
            raise RefusedCall(f"{name} needs {argument}")
    if tool.known == _NAMES and sum(argument in given for argument in _NAMES) != 1:
        how = "not both" if "entry_id" in given else "got neither"
        raise RefusedCall(f"{name} needs entry_id or old_content , {how}")
    return {argument: _checked_value(argument, value) for argument, value in given.items()}


def _checked_value(argument: str, value: Any) -> Any:
    if argument == "entry_id" and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if argument == "entry_id":
        fits, kind = number and isinstance(value, int), "the number of an entry"
    elif argument == "importance":
        fits, kind = number, "a number"
    else:
        fits, kind = isinstance(value, str), "a string"
    if not fits:
        raise RefusedCall(f"{argument} must be {kind}")
    return value
