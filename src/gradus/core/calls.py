"""The parts of a model's answer: its thoughts, and its calls of tools, read in any form and written in the plain one.

Nothing in a thought is a call. The forms in which the families of models write calls:

| form | a call |
|---|---|
| ``json`` | ``{"name": "add", "arguments": {"a": 1}}``, the whole answer or its last lines, in a code fence or none; Llama 3 says ``parameters`` |
| ``hermes`` | the same between ``<tool_call>`` and ``</tool_call>``: Hermes, Qwen 2.5 and 3 |
| ``xml`` | ``<tool_call><function=add><parameter=a>1</parameter></function></tool_call>``: Qwen 3.5, Nemotron 3 |

The templates of other families (Mistral, Gemma, gpt-oss) are refused; their models write ``json`` if asked to.

A call that begins as one and cannot be read is a call with the fault ``malformed``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

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
    """Read a text as one of these types; an argument that may be a text stays one."""
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text  # the check of arguments says what was expected


class _Malformed(Exception):
    """A call that cannot be read."""


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at ``at`` and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        near = text[max(at, error.pos - 20) : error.pos + 10]
        raise _Malformed(f"the call is not JSON: {error.msg} near {near!r}") from None
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"the call is not JSON: {error}") from None


def _call(value: Any) -> ToolCall:
    """Return a call out of a JSON object."""
    record = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    name: Any = record.get("name")
    arguments: Any = record.get("arguments", record.get("parameters"))
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name:
        raise _Malformed(f"a call is an object with the keys name and arguments, got {json.dumps(value)[:60]}")
    if not isinstance(arguments, dict):
        raise _Malformed(f"the arguments of {name} should be an object, got {json.dumps(arguments)[:60]}")
    return ToolCall(name=name, arguments=cast(dict[str, Any], arguments), id=str(record.get("id") or ""))


def _bad(start: int, end: int, error: _Malformed) -> ToolCall:
    return ToolCall(name="", start=start, end=end, fault="malformed", error=str(error))


# Nothing is walked twice: a thought that was left out is a long stretch of white space.
_BEGIN = re.compile(r"^[ \t]*+(`?(?:<\|python_tag\|>\s*+)?(?:\[\s*+)?)(?=\{)", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;\]]*")
_FENCE = re.compile(r"`{1,3}\s*\Z")


def _read_json(text: str) -> Iterator[ToolCall]:
    """Read objects with a name and arguments, or a name alone, at the end of an answer; other objects are not calls."""
    begin = next((match for match in _BEGIN.finditer(text) if _is_call(text[match.end() :])), None)
    first, at = (begin.start(1), begin.end()) if begin is not None else (0, len(text))
    while at < len(text) and not _FENCE.match(text, at):
        end = len(text)
        try:
            if text[at] != "{":
                raise _Malformed(f"expected the end of the answer behind a call, got {text[at : at + 30]!r}")
            value, end = _decoded(text, at)
            yield replace(_call(value), start=first, end=end)
        except _Malformed as error:
            yield _bad(first, end, error)
        between = _BETWEEN.match(text, end)
        first = at = between.end() if between else end


def _is_call(text: str) -> bool:
    """Say whether an object is meant as a call: it has the keys of one, or begins with them and cannot be read."""
    try:
        value, _ = _decoded(text, 0)
    except _Malformed:
        return (
            re.match(r"\{\s*\"?'?name\b", text) is not None
            or re.search(r"\"(arguments|parameters)\"", text) is not None
        )
    keys = set(cast(dict[str, Any], value))
    return keys == {"name"} or bool({"arguments", "parameters"} & keys)


_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _read_tagged(text: str, read: Callable[[str], ToolCall]) -> Iterator[ToolCall]:
    """Read calls between two marks. ``read`` gets what stands between them."""
    for found in _TAGGED.finditer(text):
        try:
            if not found[2]:
                raise _Malformed("expected </tool_call> behind the call")
            yield replace(read(found[1].strip()), start=found.start(), end=found.end())
        except _Malformed as error:
            yield _bad(found.start(), found.end(), error)


def _hermes_call(inside: str) -> ToolCall:
    value, end = _decoded(inside, 0)
    if end < len(inside):
        raise _Malformed(f"expected </tool_call> behind the call, got {inside[end : end + 20]!r}")
    return _call(value)


def _xml_call(inside: str) -> ToolCall:
    function = _FUNCTION.fullmatch(inside)
    if function is None or _PARAMETER.sub("", function[2]).strip():
        raise _Malformed(f"expected <function=NAME>, parameters and </function> in the call, got {inside[:60]!r}")
    return ToolCall(name=function[1], arguments={each[1]: each[2] for each in _PARAMETER.finditer(function[2])})


FORMS: Mapping[str, Callable[[str], Iterator[ToolCall]]] = {
    "hermes": lambda text: _read_tagged(text, _hermes_call),
    "xml": lambda text: _read_tagged(text, _xml_call),
    "json": _read_json,
}
_MARKS = {
    "xml": re.compile(r"<tool_call>\s*<function="),
    "hermes": re.compile(r"<tool_call>"),
}
