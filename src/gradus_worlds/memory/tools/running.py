"""The tools of a policy: strict checks of a call's arguments, and what it is told back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.store.records import Entry, RefusedCall
from gradus_worlds.memory.tools.parsing import WrittenCall, parse_calls


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
