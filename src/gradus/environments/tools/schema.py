"""Describes a function as a JSON schema, from its type hints and its docstring in Google's style.

The texts are those of ``transformers.utils.get_json_schema``, so models read the same prompts; the base installation has no transformers.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gradus.core.values import JsonDict

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
_SECTION = re.compile(r"Args:|Returns:|Raises:")
# Those of transformers: the block of arguments, and one argument whose description may go on in lines that are indented deeper.
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(?:Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|\n)([ \t]*)(\w+):\s*(.*?)\s*(?=\n(?!\1[ \t])[ \t]*\w+:|\Z)", re.DOTALL)


def function_schema(function: Callable[..., Any]) -> JsonDict:
    """Returns OpenAI's schema of a function. Raises ValueError if a hint, the docstring or the line of an argument is missing."""
    text = (inspect.getdoc(function) or "").strip()
    if not text:
        raise ValueError("it has no docstring")
    hints = get_type_hints(function)
    descriptions = _descriptions(text)
    properties: JsonDict = {}
    required: list[str] = []
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        name = parameter.name
        # A method that is not bound still has self in its signature.
        if place == 0 and name in ("self", "cls") and name not in hints:
            continue
        if name not in hints:
            raise ValueError(f"argument {name} has no type hint")
        if name not in descriptions:
            raise ValueError(f"the docstring has no description for the argument {name!r}")
        properties[name] = {**_schema(hints[name]), "description": descriptions[name]}
        if parameter.default is parameter.empty:
            required.append(name)
    parameters: JsonDict = {"type": "object", "properties": properties}
    # transformers leaves the key out if nothing is required; templates print what is there.
    if required:
        parameters["required"] = required
    name = getattr(function, "__name__", repr(function))
    description = _SECTION.split(text)[0].strip()
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _descriptions(text: str) -> dict[str, str]:
    """Returns the description of each argument."""
    block = _ARGUMENTS.search(text)
    if block is None:
        return {}
    # Empty lines between arguments would end a description too early.
    lines = "\n".join(line for line in block[1].split("\n") if line.strip())
    return {name: re.sub(r"\s*\n+\s*", " ", about.strip()) for _, name, about in _ARGUMENT.findall(lines)}


def _schema(hint: Any) -> JsonDict:
    """Returns the JSON schema of a type hint."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if hint is Any:
        return {}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        names = [_NAMES[type(value)] for value in arguments]
        return {"type": _one_or_all(names), "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    raise ValueError(
        f"the type hint {hint!r} has no JSON schema; use int, float, str, bool, list, dict, Literal or a union"
    )


def _union(arguments: Sequence[Any]) -> JsonDict:
    choices = [_schema(argument) for argument in arguments if argument is not type(None)]
    # Types without details of their own fit into one list of names, others need anyOf.
    plain = all(choice.keys() == {"type"} for choice in choices)
    if len(choices) == 1:
        schema = choices[0]
    elif plain:
        schema = {"type": _one_or_all(sorted(choice["type"] for choice in choices))}
    else:
        schema = {"anyOf": choices}
    return {**schema, "nullable": True} if type(None) in arguments else schema


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    different = list(dict.fromkeys(names))
    return different[0] if len(different) == 1 else different
