"""The tools of a policy: strict checks of a call's arguments, and what it is told back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import whole_characters
from gradus_worlds.memory.store.memory import Memory, check_number
from gradus_worlds.memory.store.records import Entry, RefusedCall
from gradus_worlds.memory.tools.parsing import BrokenCall, ParsedCall, parse_calls


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What became of one call. ``code`` is ``ok`` or the kind of refusal; ``start`` and ``end`` are its characters."""

    name: str
    ok: bool
    code: str
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
    """``required`` and ``optional`` name the arguments with their kind: text, id or number; exactly one of ``either`` is given."""

    name: str
    required: Mapping[str, str]
    optional: Mapping[str, str]
    run: Callable[[Memory, Mapping[str, Any], int | None], Entry | str | None]
    either: tuple[str, ...] = ()


def _insert(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    return memory.insert(
        given["category"],
        given["content"],
        timestamp=given.get("timestamp"),
        importance=given.get("importance", 0.5),
        source=source,
    )


def _named(memory: Memory, given: Mapping[str, Any]) -> int:
    """The number of the entry that a call is about, which the call gives or names by what it says."""
    return given["entry_id"] if "entry_id" in given else memory.named(given["category"], given["old_content"]).id


def _update(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    return memory.update(given["category"], _named(memory, given), given["new_content"], source=source)


def _delete(memory: Memory, given: Mapping[str, Any], source: int | None) -> Entry:
    return memory.delete(given["category"], _named(memory, given))


def _core(memory: Memory, given: Mapping[str, Any], source: int | None) -> str:
    return memory.set_core(given["content"])


def _noop(memory: Memory, given: Mapping[str, Any], source: int | None) -> None:
    return None


_NAMES = {"entry_id": "id", "old_content": "text"}  # two ways to say which entry
_TOOLS = (
    Tool(
        name="memory_insert",
        required={"category": "text", "content": "text"},
        optional={"timestamp": "text", "importance": "number"},
        run=_insert,
    ),
    Tool(
        name="memory_update",
        required={"category": "text", "new_content": "text"},
        optional=_NAMES,
        either=tuple(_NAMES),
        run=_update,
    ),
    Tool(name="memory_delete", required={"category": "text"}, optional=_NAMES, either=tuple(_NAMES), run=_delete),
    Tool(name="core_memory_update", required={"content": "text"}, optional={}, run=_core),
    Tool(name="memory_noop", required={}, optional={}, run=_noop),
)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _TOOLS}


def run_calls(
    memory: Memory, answer: str, *, source: int | None = None, fails: Callable[[], bool] = lambda: False
) -> list[CallResult]:
    """Carry out all calls of an answer, in order. A broken one fails alone; ``source`` is the chunk that was read.

    ``fails`` is asked before each well-formed call that would change the memory: whether it is refused all the same.
    """
    return [_run(memory, call, source, fails) for call in parse_calls(answer)]


def _run(memory: Memory, call: ParsedCall | BrokenCall, source: int | None, fails: Callable[[], bool]) -> CallResult:
    def result(code: str, message: str, **told: Any) -> CallResult:
        name = whole_characters(call.name if isinstance(call, ParsedCall) else "")
        message = whole_characters(message)
        return CallResult(
            name=name, ok=code == "ok", code=code, message=message, start=call.start, end=call.end, **told
        )

    if isinstance(call, BrokenCall):
        return result(call.code, call.message)
    try:
        tool = TOOLS.get(call.name)
        if tool is None:
            raise RefusedCall("unknown-tool", f"unknown tool {call.name[:40]} ; there are {' '.join(TOOLS)}")
        given = _checked(tool, call.arguments)
        if given and fails():
            about = " ".join(str(given.get("content", given.get("old_content", "it"))).split()[:2])
            raise RefusedCall("failed", f"there was no answer ; {about} is not in memory")
        done = tool.run(memory, given, source)
    except RefusedCall as refused:
        return result(refused.code, str(refused))
    if isinstance(done, Entry):
        return result("ok", "done", entry_id=done.id, bank=done.bank, content=done.content)
    return result("ok", "done", content=done)


def _checked(tool: Tool, given: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {**tool.required, **tool.optional}
    for argument in given:
        if argument not in known:
            raise RefusedCall(
                "unknown-argument", f"{tool.name} takes {' '.join(known) or 'no arguments'} , not {argument[:40]}"
            )
    for argument in tool.required:
        if argument not in given:
            raise RefusedCall(f"no-{argument.replace('_', '-')}", f"{tool.name} needs {argument}")
    if tool.either and sum(argument in given for argument in tool.either) != 1:
        kind, how = ("two-entries", "not both") if any(a in given for a in tool.either) else ("no-entry", "got neither")
        raise RefusedCall(kind, f"{tool.name} needs {' or '.join(tool.either)} , {how}")
    return {argument: _KINDS[known[argument]](argument, value) for argument, value in given.items()}


def _text(argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RefusedCall(f"{argument.replace('_', '-')}-type", f"{argument} must be a string")
    return value


def _id(argument: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return check_number(value)


def _number(argument: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise RefusedCall(f"{argument}-type", f"{argument} must be a number")


_KINDS: Mapping[str, Callable[[str, Any], Any]] = {"text": _text, "id": _id, "number": _number}
