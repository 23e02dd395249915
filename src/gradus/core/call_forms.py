"""The forms in which the families of models write calls of tools, and a reader for each.

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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from gradus.core.records import ToolCall

Reader = Callable[[str], "Iterator[ToolCall]"]


class _Malformed(Exception):
    """A call that cannot be read; ``end`` is where reading stopped."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end


def _bad(start: int, end: int, message: str) -> ToolCall:
    return ToolCall(name="", start=start, end=end, fault="malformed", error=message)


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at ``at`` and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        near = text[max(at, error.pos - 20) : error.pos + 10]
        raise _Malformed(f"the call is not JSON: {error.msg} near {near!r}", len(text)) from None
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"the call is not JSON: {error}", len(text)) from None


def _call(value: Any, start: int, end: int) -> ToolCall:
    """Return a call out of a JSON object."""
    if not isinstance(value, dict):
        raise _Malformed(f"a call is an object with name and arguments, got {json.dumps(value)[:60]}", end)
    record = cast(dict[str, Any], value)
    name: Any = record.get("name")
    arguments: Any = record.get("arguments", record.get("parameters"))
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name:
        raise _Malformed(f"a call has the keys name and arguments, got {', '.join(record) or 'none'}", end)
    if not isinstance(arguments, dict):
        raise _Malformed(f"the arguments of {name} should be an object, got {json.dumps(arguments)[:60]}", end)
    return ToolCall(
        name=name, arguments=cast(dict[str, Any], arguments), id=str(record.get("id") or ""), start=start, end=end
    )


def _skip(text: str, at: int, characters: str = " \n\r\t") -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


# Nothing is walked twice: a thought that was left out is a long stretch of white space.
_BEGIN = re.compile(r"^[ \t]*+`?(?:<\|python_tag\|>\s*+)?(?:\[\s*+)?(?=\{)", re.MULTILINE)
_FENCE = re.compile(r"`{1,3}\s*\Z")


def _read_json(text: str) -> Iterator[ToolCall]:
    """Read objects with a name and arguments, or a name alone, at the end of an answer; other objects are not calls."""
    begin = next((match for match in _BEGIN.finditer(text) if _is_call(text[match.end() :])), None)
    if begin is None:
        return
    at = begin.end()
    first = begin.start() + len(begin[0]) - len(begin[0].lstrip())
    while at < len(text):
        try:
            value, end = _value(text, at)
            yield _call(value, first, end)
        except _Malformed as error:
            yield _bad(first, error.end, str(error))
            at = _skip(text, error.end, " \n\r\t,;]")
        else:
            at = _skip(text, end, " \n\r\t,;]")
        first = at
        if _FENCE.match(text, at):
            return
        if at < len(text) and text[at] != "{":
            yield _bad(at, len(text), f"expected the end of the answer behind a call, got {text[at : at + 30]!r}")
            return


def _is_call(text: str) -> bool:
    """Say whether an object is meant as a call: it has the keys of one, or begins with them and cannot be read."""
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return (
            re.match(r"\{\s*\"?'?name\b", text) is not None
            or re.search(r"\"(arguments|parameters)\"", text) is not None
        )
    if not isinstance(value, dict):
        return False
    keys = set(cast(dict[str, Any], value))
    return keys == {"name"} or bool({"arguments", "parameters"} & keys)


def _tagged(
    text: str, opening: str, closing: str, read: Callable[[str, int, int], tuple[ToolCall, int]]
) -> Iterator[ToolCall]:
    """Calls between two marks. ``read`` gets the text, where the call starts and where its inside does."""
    at = 0
    while (start := text.find(opening, at)) >= 0:
        try:
            call, end = read(text, start, start + len(opening))
            end = _skip(text, end)
            if not text.startswith(closing, end):
                raise _Malformed(f"expected {closing} behind the call, got {text[end : end + 20]!r}", end)
            at = end + len(closing)
            yield ToolCall(name=call.name, arguments=call.arguments, id=call.id, start=start, end=at)
        except _Malformed as error:
            close = text.find(closing, start)
            at = len(text) if close < 0 else close + len(closing)
            yield _bad(start, at, str(error))


def _read_hermes(text: str) -> Iterator[ToolCall]:
    def read(text: str, start: int, inside: int) -> tuple[ToolCall, int]:
        value, end = _value(text, _skip(text, inside))
        return _call(value, start, end), end

    return _tagged(text, "<tool_call>", "</tool_call>", read)


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _read_xml(text: str) -> Iterator[ToolCall]:
    def read(text: str, start: int, inside: int) -> tuple[ToolCall, int]:
        function = _FUNCTION.match(text, inside)
        if function is None:
            raise _Malformed(f"expected <function=NAME> in the call, got {text[inside : inside + 30]!r}", inside)
        at, arguments = function.end(), dict[str, Any]()
        while parameter := _PARAMETER.match(text, at):
            arguments[parameter[1]] = parameter[2]
            at = parameter.end()
        at = _skip(text, at)
        if not text.startswith("</function>", at):
            raise _Malformed(f"expected </function> behind the parameters, got {text[at : at + 30]!r}", at)
        return ToolCall(name=function[1], arguments=arguments), at + len("</function>")

    return _tagged(text, "<tool_call>", "</tool_call>", read)


FORMS: Mapping[str, Reader] = {
    "hermes": _read_hermes,
    "xml": _read_xml,
    "json": _read_json,
}
