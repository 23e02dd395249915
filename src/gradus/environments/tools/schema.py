"""Describes a function as a JSON schema, from its type hints and its docstring in Google's style.

The texts are those of ``transformers.utils.get_json_schema``, so models read the same prompts; the base installation has no transformers.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_NAMES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
_DESCRIPTION = re.compile(r"^(.*?)[\n\s]*(?:Args:|Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(?:Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|\n)([ \t]*)(\w+):\s*(.*?)\s*(?=\n(?!\1[ \t])[ \t]*\w+:|\Z)", re.DOTALL)


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns OpenAI's schema of a function. Raises ValueError if a hint, the docstring or the line of an argument is missing."""
    text = (inspect.getdoc(function) or "").strip()
    if not text:
        raise ValueError("it has no docstring")
    hints, described = get_type_hints(function), _described(text)
    properties: dict[str, Any] = {}
    parameters = _parameters(function)
    for parameter in parameters:
        if parameter.name not in hints:
            raise ValueError(f"argument {parameter.name} has no type hint")
        if parameter.name not in described:
            raise ValueError(f"the docstring has no description for the argument {parameter.name!r}")
        properties[parameter.name] = {**_schema(hints[parameter.name]), "description": described[parameter.name]}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [each.name for each in parameters if each.default is inspect.Parameter.empty]:
        schema["required"] = required
    found = _DESCRIPTION.search(text)
    name = getattr(function, "__name__", repr(function))
    return {
        "type": "function",
        "function": {"name": name, "description": found.group(1).strip() if found else text, "parameters": schema},
    }


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    bound = found and found[0].name in ("self", "cls") and found[0].annotation is inspect.Parameter.empty
    return found[1:] if bound else found


def _described(text: str) -> dict[str, str]:
    """Returns the description of each argument."""
    if (block := _ARGUMENTS.search(text)) is None:
        return {}
    lines = "\n".join(line for line in block.group(1).split("\n") if line.strip())
    return {match[1]: re.sub(r"\s*\n+\s*", " ", match[2].strip()) for match in _ARGUMENT.findall(lines)}


def _schema(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        if hint is Any:
            return {}
        if hint in _NAMES:
            return {"type": _NAMES[hint]}
    elif origin in (Union, types.UnionType):
        return _union(arguments)
    elif origin is Literal and all(type(each) in _NAMES for each in arguments):
        kinds = list(dict.fromkeys(_NAMES[type(each)] for each in arguments))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(arguments)}
    elif origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    elif origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    raise ValueError(
        f"the type hint {hint!r} has no JSON schema; use int, float, str, bool, list, dict, Literal or a union"
    )


def _union(arguments: Sequence[Any]) -> dict[str, Any]:
    kinds = [_schema(each) for each in arguments if each is not type(None)]
    if len(kinds) == 1:
        schema = kinds[0]
    elif all(each.keys() == {"type"} for each in kinds):
        names = sorted({each["type"] for each in kinds})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": kinds}
    return {**schema, "nullable": True} if type(None) in arguments else schema
