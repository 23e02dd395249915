"""A policy's answer with calls of tools on its way to a server of Gradus: the text, and the calls as the policy read them.

A server that reads the text itself would miss a call in a form that only the policy knows, and one that could not be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gradus.core import Message, ToolCall
from gradus.core.calls import checked_call, without_calls, write_calls
from gradus.interop.openenv.wire import FIELDS, WireError

_KINDS: Mapping[str, type | tuple[type, ...]] = {"name": str, "arguments": dict, "id": str, "start": int, "end": int}


def reads_calls(field: str | None, first: Mapping[str, Any]) -> bool:
    """Whether a server reads ``calls`` beside the text: only ours names all of our fields in its first observation."""
    return field == "text" and first.keys() >= set(FIELDS)


def written_answer(answer: Message) -> tuple[str, tuple[ToolCall, ...]]:
    """The answer as one text, calls behind it as lines of JSON, and the calls with their places in it.

    A call that cannot be read has no line.
    """
    text, calls = answer.content, list[ToolCall]()
    for call in answer.calls:
        line = write_calls([call]) if call.fault is None else ""
        text = "\n".join(filter(None, (text, line)))
        calls.append(replace(call, start=len(text) - len(line), end=len(text)))
    return text, tuple(calls)


def action_of(answer: Message) -> dict[str, Any]:
    """The action that a server of ours takes."""
    text, calls = written_answer(answer)
    return {"text": text, "calls": [asdict(each) for each in calls]}


def answer_of(action: Mapping[str, Any]) -> str | Message:
    """What an environment with tools is told of an action with a text. Raises WireError for calls that are none."""
    text: str = action["text"]
    if action.get("calls") is None:
        return text
    given = action["calls"]
    if not isinstance(given, list):
        raise WireError("VALIDATION_ERROR", f"expected calls to be a list of objects, got {type(given).__name__}")
    calls = tuple(map(_call, given))
    return Message(role="assistant", content=without_calls(text, calls), calls=calls)


def placed(told: Sequence[ToolCall], answer: Message) -> tuple[ToolCall, ...]:
    """The calls that a server told, at their places in the answer as the policy wrote it."""
    if len(told) != len(answer.calls):
        return tuple(told)
    return tuple(replace(one, start=own.start, end=own.end) for one, own in zip(told, answer.calls, strict=True))


def _call(given: Any) -> ToolCall:
    try:
        call = ToolCall(**given)
        odd = [name for name, kind in _KINDS.items() if not isinstance(getattr(call, name), kind)]
    except TypeError:
        odd = ["its fields"]
        call = ToolCall(name="")
    if odd or call.fault not in (None, "malformed") or not isinstance(call.error, str | None):
        wrong = odd[0] if odd else "fault or error"
        raise WireError(
            "VALIDATION_ERROR",
            'expected a call such as {"name": "count", "arguments": {"item": "figs"}}, or {"name": "", "fault": "malformed", '
            f'"error": "..."}}; {wrong} does not fit: {given!r:.200}',
        )
    return checked_call(call)
