"""Tools: functions with a JSON schema, which comes from signature and docstring if it is not given."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.environments.tools.schema import function_schema


@frozen_record
class Tool:
    """A function that a policy can call. ``schema`` is OpenAI's: ``{"type": "function", "function": {"name", ...}}``."""

    schema: Json
    run: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    @property
    def parameters(self) -> Json:
        """The JSON schema of the arguments."""
        return self.schema["function"].get("parameters") or {"type": "object", "properties": {}}


def as_tool(function: Callable[..., Any]) -> Tool:
    """Makes a tool of a function or a bound method. It needs type hints and a docstring that says what each argument is (Google's style).

    Raises ConfigError for a function that cannot be described.
    """
    # Bound methods are new objects at each access; their function is the key of the cache.
    return Tool(schema=_schema(getattr(function, "__func__", function)), run=function)


@lru_cache(maxsize=512)
def _schema(function: Callable[..., Any]) -> Json:
    try:
        return function_schema(function)
    except (ValueError, NameError, TypeError) as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"the tool {name} cannot be described: {error}. Give it type hints, a docstring and a line for each argument under Args:"
        ) from error


def check_arguments(tool: Tool, arguments: Json) -> str | None:
    """Says in a sentence for the model what is wrong with the arguments; None if they fit the schema.

    >>> def add(a: int, b: int) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         a: The first.
    ...         b: The second.
    ...     '''
    ...     return a + b
    >>> check_arguments(as_tool(add), {"a": "one", "c": 2})
    'add: unknown argument c; it takes a, b'
    >>> check_arguments(as_tool(add), {"a": "one", "b": 2})
    "add: argument a: 'one' is not of type 'integer'"
    """
    from jsonschema import Draft202012Validator

    schema = tool.parameters
    names: list[str] = list(schema.get("properties") or ())
    # JSON Schema allows unknown arguments unless told otherwise; a Python function does not.
    if schema.get("additionalProperties") in (None, False):
        unknown = [name for name in arguments if name not in names]
        if unknown:
            return f"{tool.name}: unknown argument {unknown[0]}; it takes {', '.join(names) or 'none'}"
    # Said here and not by jsonschema, for its sentence does not list what the tool takes.
    missing: list[str] = [name for name in schema.get("required") or () if name not in arguments]
    if missing:
        return f"{tool.name}: the argument {missing[0]} is missing; it takes {', '.join(names)}"
    error = next(Draft202012Validator(_nullable(schema)).iter_errors(dict(arguments)), None)
    if error is None:
        return None
    place = ".".join(map(str, error.absolute_path))
    return f"{tool.name}: argument {place}: {error.message}" if place else f"{tool.name}: {error.message}"


def _nullable(schema: Any) -> Any:
    """Rewrites ``nullable``, by which transformers marks what may be null, as a type of JSON schema."""
    if isinstance(schema, list):
        return [_nullable(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _nullable(value) for key, value in cast(JsonDict, schema).items()}
    if plain.get("nullable") is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain
