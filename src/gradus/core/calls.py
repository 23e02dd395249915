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
from gradus.core.values import Json, JsonDict, as_mapping

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
    characters = [" "] * len(text)
    for start, end in _spoken(text):
        characters[start:end] = text[start:end]
    return "".join(characters)


def _spoken(text: str) -> list[tuple[int, int]]:
    """Return the stretches of a text that are said aloud."""
    stretches: list[tuple[int, int]] = []
    thought: str | None = None  # the tag of the thought that the text is in
    start = 0  # of what is said aloud
    for tag in _TAG.finditer(text):
        closing, name = tag[1] == "/", tag[2].lower()
        if thought is None and not closing:
            stretches.append((start, tag.start()))
            thought = name
        elif closing and thought is None:
            # Some chat templates open the thought in the prompt, so that all before its end was one.
            stretches.clear()
            start = tag.end()
        elif closing and thought == name:
            thought, start = None, tag.end()
    if thought is None:
        stretches.append((start, len(text)))
    return stretches


def read_message(text: str, form: str | None = None, tools: Sequence[Json] = ()) -> Message:
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
    why = "not carried out, because another call of this answer cannot be read"
    refused = tuple(call if call.fault else replace(call, fault="refused", error=why) for call in calls)
    error = next(call.error for call in calls if call.fault == "malformed")
    message = f"Error: {error}"
    if len(calls) > 1:
        message += "; no call of this answer was carried out"
    return refused, message


def without_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return an answer without its calls."""
    content = text
    for call in reversed(calls):  # from the end, so that the places of the others stay
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
    records = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return "\n".join(json.dumps(record, ensure_ascii=False) for record in records)


def _typed(call: ToolCall, tools: Sequence[Json]) -> ToolCall:
    """Return a call whose values came as texts, read by the types of the tool's schema."""
    functions: list[Json] = [tool.get("function", tool) for tool in tools]
    schema = next((function.get("parameters") for function in functions if function.get("name") == call.name), None)
    properties = as_mapping(as_mapping(schema).get("properties"))
    arguments = {key: _typed_value(value, _kinds(properties.get(key))) for key, value in call.arguments.items()}
    return replace(call, arguments=arguments)


def _kinds(schema: Json | None) -> set[str]:
    """Return the types that a schema allows; none if it does not say."""
    if not isinstance(schema, Mapping):  # true allows all
        return set()
    kind: str | Sequence[str] = schema.get("type") or ()
    if isinstance(kind, str):
        return {kind}
    choices: list[Json] = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return set(kind).union(*map(_kinds, choices))


_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def _typed_value(text: str, kinds: set[str]) -> Any:
    """Read a text as one of these types; an argument that may be a text stays one."""
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads(_PYTHON_WORDS.get(text, text))
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
    record = cast(JsonDict, value) if isinstance(value, dict) else {}
    name: Any = record.get("name")
    arguments: Any = record.get("arguments", record.get("parameters"))
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name:
        raise _Malformed(f"a call is an object with the keys name and arguments, got {json.dumps(value)[:60]}")
    if not isinstance(arguments, dict):
        raise _Malformed(f"the arguments of {name} should be an object, got {json.dumps(arguments)[:60]}")
    return ToolCall(name=name, arguments=cast(JsonDict, arguments), id=str(record.get("id") or ""))


def _bad(start: int, end: int, error: _Malformed) -> ToolCall:
    return ToolCall(name="", start=start, end=end, fault="malformed", error=str(error))


# Nothing is walked twice: a thought that was left out is a long stretch of white space.
_BEGIN = re.compile(r"^[ \t]*+(`?(?:<\|python_tag\|>\s*+)?(?:\[\s*+)?)(?=\{)", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;\]]*")
_FENCE = re.compile(r"`{1,3}\s*\Z")
_BEGINS_WITH_NAME = re.compile(r"\{\s*\"?'?name\b")
_ARGUMENTS = re.compile(r"\"(arguments|parameters)\"")


def _read_json(text: str) -> Iterator[ToolCall]:
    """Read objects with a name and arguments, or a name alone, at the end of an answer; other objects are not calls."""
    begin = next((match for match in _BEGIN.finditer(text) if _is_call(text[match.end() :])), None)
    if begin is None:
        return
    # The call is cut out of the answer together with what stands before its brace, such as a bracket.
    first, at = begin.start(1), begin.end()
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
        return _BEGINS_WITH_NAME.match(text) is not None or _ARGUMENTS.search(text) is not None
    keys = set(cast(JsonDict, value))
    return keys == {"name"} or bool({"arguments", "parameters"} & keys)


_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _read_tagged(text: str, read: Callable[[str], ToolCall]) -> Iterator[ToolCall]:
    """Read calls between two marks. ``read`` gets what stands between them."""
    for match in _TAGGED.finditer(text):
        start, end = match.span()
        try:
            if not match[2]:
                raise _Malformed("expected </tool_call> behind the call")
            yield replace(read(match[1].strip()), start=start, end=end)
        except _Malformed as error:
            yield _bad(start, end, error)


def _hermes_call(inside: str) -> ToolCall:
    value, end = _decoded(inside, 0)
    if end < len(inside):
        raise _Malformed(f"expected </tool_call> behind the call, got {inside[end : end + 20]!r}")
    return _call(value)


def _xml_call(inside: str) -> ToolCall:
    function = _FUNCTION.fullmatch(inside)
    if function is None or _PARAMETER.sub("", function[2]).strip():
        raise _Malformed(f"expected <function=NAME>, parameters and </function> in the call, got {inside[:60]!r}")
    return ToolCall(name=function[1], arguments=dict(_PARAMETER.findall(function[2])))


FORMS: Mapping[str, Callable[[str], Iterator[ToolCall]]] = {
    "hermes": lambda text: _read_tagged(text, _hermes_call),
    "xml": lambda text: _read_tagged(text, _xml_call),
    "json": _read_json,
}
_MARKS = {
    "xml": re.compile(r"<tool_call>\s*<function="),
    "hermes": re.compile(r"<tool_call>"),
}
