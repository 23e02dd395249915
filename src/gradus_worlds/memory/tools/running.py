"""The tools of a policy: calls found in what it wrote, strict checks of their arguments, and what it is told back.

A call is ``{"name": ..., "arguments": {...}}``: alone, one after another, in a list, fenced, or in ``<tool_call>`` tags. Every JSON object
outside of another one, and an empty list, is read as a call, by a real decoder, so that braces, quotes and tags inside strings are just text. A call that cannot be read keeps its
reason, and reading goes on behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, cast

from gradus.core import blank_thoughts, frozen_record
from gradus_worlds.memory.store.memory import Entry, Memory, RefusedCall

MAX_CALLS = 64


@frozen_record
class WrittenCall:
    """A call as written; whether its name and arguments are any good is for the tools to say."""

    # Its characters.
    start: int
    end: int
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Why it cannot be read as a call; empty if it can.
    wrong: str = ""


# Where a call may begin: at a brace with a key, quoted or not, behind it, or at an empty list.
_ATTEMPT = re.compile(r"""\{(?=\s*(?:["'}]|\w+\s*:))|\[(?=\s*\])""")
# What looks like the next call behind a broken one: its name, a tag, a fence, or a brace that begins a line.
_NEXT = re.compile(r"""\{\s*["']?name["']?\s*:|</?tool_call>|```|(?<!\s)[^\S\n]*+\n\s*+\{""")
_DECODER = json.JSONDecoder()
# How the decoder's message begins -> ours.
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
        # Reading goes on at what looks like the next call, so that one broken call costs one.
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
        for prefix, diagnosis in _BROKEN.items():
            if str(error).startswith(prefix):
                return diagnosis
    return "a call is not closed with a brace" if piece.count("{") > piece.count("}") else "a call is not valid JSON"


def _wrong(value: Any) -> str | None:
    """Says why a value is not a call."""
    if not isinstance(value, dict):
        return "a call must be a JSON object, got a list"
    fields = cast(dict[str, Any], value)
    if not isinstance(fields.get("name"), str):
        return "a call needs a name"
    if not isinstance(fields.get("arguments"), dict):
        return "a call needs arguments"
    return "a call has a name and arguments , nothing else" if len(fields) > 2 else None


@frozen_record
class CallResult:
    """The result of one call."""

    name: str
    ok: bool
    # Why it was refused; done if it was not.
    message: str
    # Its characters in the answer.
    start: int
    end: int
    # The entry that it was about, as it is behind the call; of the core its text alone.
    entry_id: int | None = None
    bank: str | None = None
    content: str | None = None

    @property
    def wrote(self) -> bool:
        """Says whether the call wrote an entry, new or anew."""
        return self.ok and self.name in ("memory_insert", "memory_update")


Arguments = Mapping[str, Any]
Changed = Entry | str | None


@frozen_record
class MemoryTool:
    """The function that runs a call, and the names of its arguments."""

    run: Callable[[Memory, Arguments, int | None], Changed]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def _insert(memory: Memory, arguments: Arguments, source: int | None) -> Entry:
    timestamp = arguments.get("timestamp")
    return memory.insert(arguments["category"], arguments["content"], timestamp=timestamp, source=source)


def _entry_id(memory: Memory, arguments: Arguments) -> int:
    """The number of the entry that a call is about, which the call gives or names by what it says."""
    if "entry_id" in arguments:
        return arguments["entry_id"]
    return memory.named(arguments["category"], arguments["old_content"]).id


def _update(memory: Memory, arguments: Arguments, source: int | None) -> Entry:
    entry_id = _entry_id(memory, arguments)
    return memory.update(arguments["category"], entry_id, arguments["new_content"], source=source)


def _delete(memory: Memory, arguments: Arguments, source: int | None) -> Entry:
    return memory.delete(arguments["category"], _entry_id(memory, arguments))


def _core(memory: Memory, arguments: Arguments, source: int | None) -> str:
    return memory.set_core(arguments["content"])


def _noop(memory: Memory, arguments: Arguments, source: int | None) -> None:
    """Changes nothing."""


_NAMES = ("entry_id", "old_content")  # two ways to say which entry
TOOLS: Mapping[str, MemoryTool] = {
    "memory_insert": MemoryTool(run=_insert, required=("category", "content"), optional=("timestamp",)),
    "memory_update": MemoryTool(run=_update, required=("category", "new_content"), optional=_NAMES),
    "memory_delete": MemoryTool(run=_delete, required=("category",), optional=_NAMES),
    "core_memory_update": MemoryTool(run=_core, required=("content",)),
    "memory_noop": MemoryTool(run=_noop),
}


def run_calls(memory: Memory, answer: str, *, source: int | None = None) -> list[CallResult]:
    """Carry out all calls of an answer, in order. A broken one fails alone; ``source`` is the chunk that was read."""
    return [_result(memory, call, source) for call in parse_calls(answer)]


def _result(memory: Memory, call: WrittenCall, source: int | None) -> CallResult:
    result = CallResult(name=call.name, ok=False, message=call.wrong, start=call.start, end=call.end)
    if call.wrong:
        return result
    try:
        changed = _run(memory, call, source)
    except RefusedCall as refused:
        return replace(result, message=str(refused))
    result = replace(result, ok=True, message="done")
    if isinstance(changed, Entry):
        return replace(result, entry_id=changed.id, bank=changed.bank, content=changed.content)
    return replace(result, content=changed)


def _run(memory: Memory, call: WrittenCall, source: int | None) -> Changed:
    tool = TOOLS.get(call.name)
    if tool is None:
        raise RefusedCall(f"unknown tool {call.name[:40]} ; there are {' '.join(TOOLS)}")
    return tool.run(memory, _checked(call, tool), source)


def _checked(call: WrittenCall, tool: MemoryTool) -> Arguments:
    """The arguments, an entry's digits as its number."""
    name = call.name
    arguments = call.arguments
    takes = (*tool.required, *tool.optional)
    for argument in arguments:
        if argument not in takes:
            raise RefusedCall(f"{name} takes {' '.join(takes) or 'no arguments'} , not {argument[:40]}")
    for argument in tool.required:
        if argument not in arguments:
            raise RefusedCall(f"{name} needs {argument}")
    if tool.optional == _NAMES and len(arguments) != len(tool.required) + 1:
        how = "not both" if "entry_id" in arguments else "got neither"
        raise RefusedCall(f"{name} needs entry_id or old_content , {how}")
    return {argument: _checked_value(argument, value) for argument, value in arguments.items()}


_ENTRY_NUMBER = re.compile("[0-9]{1,18}")


def _checked_value(argument: str, value: Any) -> Any:
    if argument != "entry_id":
        if not isinstance(value, str):
            raise RefusedCall(f"{argument} must be a string")
        return value
    if isinstance(value, str) and _ENTRY_NUMBER.fullmatch(value):
        return int(value)
    # bool is an int in Python, and true is no number of an entry.
    if type(value) is not int:
        raise RefusedCall("entry_id must be the number of an entry")
    return value
