"""The parts of a model's answer: its thoughts, and its calls of tools, read in any form and written in the plain one.

Nothing in a thought is a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from gradus.core.call_forms import FORMS
from gradus.core.records import Message, Span, ToolCall

_TAG = re.compile(r"<(/?)(think|thinking|thought)>\s*", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """Leave out ``<think>`` blocks: nothing in them is an answer, also if a limit cut them before they ended.

    >>> without_thoughts("<think>it may be 4</think>5"), without_thoughts("it may be 4</think>5"), without_thoughts("<think>4")
    ('5', '5', '')
    """
    return "".join(text[start:end] for start, end in _spoken(text))


def blank_thoughts(text: str) -> str:
    """Put spaces in the place of thoughts, so that what is said aloud stands where it stood.

    >>> blank_thoughts("<think>4?</think>5")
    '                 5'
    """
    kept = [" "] * len(text)
    for start, end in _spoken(text):
        kept[start:end] = text[start:end]
    return "".join(kept)


def _spoken(text: str) -> list[tuple[int, int]]:
    """Return the stretches of a text that are said aloud."""
    kept: list[tuple[int, int]] = []
    opened: str | None = None
    start = 0  # of what is said aloud
    for tag in _TAG.finditer(text):
        closing, name = tag[1] == "/", tag[2].lower()
        if opened is None and not closing:
            kept.append((start, tag.start()))
            opened = name
        elif closing and opened in (name, None):
            if opened is None:  # some chat templates open the thought
                kept.clear()
            opened, start = None, tag.end()
    return kept if opened is not None else [*kept, (start, len(text))]


def read_message(text: str, form: str | None = None, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
    """Return an assistant's answer with its calls, in one form or in any. ``tools``: schemas, which say what ``xml``'s values are.

    >>> read_message('let me see\\n{"name": "add", "arguments": {"a": 1}}').calls[0].arguments
    {'a': 1}
    >>> read_message('<tool_call>\\n{"name": "add", "arguments": \\n</tool_call>').calls[0].fault
    'malformed'
    """
    visible = blank_thoughts(text)
    form = form or next((name for name, mark in _MARKS.items() if mark.search(visible)), "json")
    calls = tuple(FORMS[form](visible))
    if form == "xml":
        calls = tuple(_typed(call, tools) for call in calls)
    return Message(role="assistant", content=without_calls(text, calls), calls=calls)


def none_carried_out(calls: Sequence[ToolCall]) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls of an answer of which one cannot be read, the others refused; and what the model is told."""
    error = next(call.error for call in calls if call.fault == "malformed")
    why = "not carried out, because another call of this answer cannot be read"
    refused = tuple(call if call.fault else replace(call, fault="refused", error=why) for call in calls)
    return refused, f"Error: {error}" + ("; no call of this answer was carried out" if len(calls) > 1 else "")


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return an answer without its calls."""
    content = text
    for call in reversed(calls):
        content = content[: call.start] + content[call.end :]
    return content.strip() if calls else text


def call_spans(calls: Sequence[ToolCall]) -> tuple[Span, ...]:
    """Return a span for each call that stands in its answer's text: ``call_1``, ``call_2``, ..."""
    spans = (Span(name=f"call_{number}", start=call.start, end=call.end) for number, call in enumerate(calls, start=1))
    return tuple(span for span in spans if span.end > span.start)


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Calls in the plain form, one a line.

    >>> write_calls([ToolCall(name="add", arguments={"a": 1})])
    '{"name": "add", "arguments": {"a": 1}}'
    """
    return "\n".join(
        json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False) for call in calls
    )


def _typed(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Return a call whose values came as texts, read by the types of the tool's schema."""
    functions: list[Mapping[str, Any]] = [tool.get("function", tool) for tool in tools]
    schemas: list[Mapping[str, Any]] = [f.get("parameters") or {} for f in functions if f.get("name") == call.name]
    schema: Mapping[str, Any] = schemas[0] if schemas else {}
    properties: Mapping[str, Mapping[str, Any] | None] = schema.get("properties") or {}
    arguments = {key: _typed_value(value, _kinds(properties.get(key))) for key, value in call.arguments.items()}
    return replace(call, arguments=arguments)


def _kinds(schema: Mapping[str, Any] | None) -> set[str]:
    """Return the types that a schema allows; none if it does not say."""
    if not isinstance(schema, Mapping):  # true allows all
        return set()
    named: str | Sequence[str] = schema.get("type") or ()
    choices: list[Mapping[str, Any]] = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return {named} if isinstance(named, str) else set(named).union(*map(_kinds, choices))


def _typed_value(text: str, kinds: set[str]) -> Any:
    """Read a text as one of these types; an argument that may be a text stays one, unless it is another of them."""
    if kinds <= {"string"}:
        return text
    truth = "boolean" in kinds and text.lower() in ("true", "false")
    plain = text.lower() if truth else "null" if text == "None" else text
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        return text  # the check of arguments says what was expected
    return text if "string" in kinds and _KIND[type(value)].isdisjoint(kinds) else value


_KIND: Mapping[type, set[str]] = {
    NoneType: {"null"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: set(),  # with its quotes, which are part of the text
    list: {"array"},
    dict: {"object"},
}
_MARKS = {
    "xml": re.compile(r"<tool_call>\s*<function="),
    "hermes": re.compile(r"<tool_call>"),
}
