"""Tools: functions with a JSON schema, which comes from signature and docstring if it is not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gradus.core import ConfigError, EnvironmentFault
from gradus.environments.tools.schema import function_schema
from gradus.sandbox.command import run_python

_SHOWN = 4000  # characters of output that a model reads


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a policy can call. ``schema`` is OpenAI's: ``{"type": "function", "function": {"name", ...}}``."""

    schema: Mapping[str, Any]
    run: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments."""
        return self.schema["function"].get("parameters") or {"type": "object", "properties": {}}


def as_tool(function: Callable[..., Any]) -> Tool:
    """Makes a tool of a function or a bound method. It needs type hints and a docstring that says what each argument is (Google's style).

    Raises ConfigError for a function that cannot be described.
    """
    plain = getattr(function, "__func__", function)
    return Tool(schema=_schema(plain), run=function)


@lru_cache(maxsize=512)
def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    name = getattr(function, "__name__", repr(function))
    try:
        return function_schema(function)
    except (ValueError, NameError, TypeError) as error:
        raise ConfigError(
            f"the tool {name} cannot be described: {error}. Give it type hints, a docstring and a line for each argument under Args:"
        ) from error


def python_tool(*, seconds: float = 5.0, unsafe: bool = False) -> Tool:
    """Makes a tool ``python`` that runs code and returns what it prints; each call starts afresh.

    Without a sandbox the episode fails, unless ``unsafe``: the code can then do what this user can.
    """

    def python(code: str) -> str:
        """Run Python code and return what it prints. Nothing is kept from one call to the next.

        Args:
            code: The code.
        """
        try:
            result = run_python(code, seconds=seconds, unsafe=unsafe)
        except OSError as error:
            raise EnvironmentFault(str(error)) from error
        told = "" if result.code == 0 else f"[ended by the limit on {result.limit}]" if result.limit else result.stderr
        said = f"{result.stdout}{told}".strip() or "[nothing was printed]"
        return said if len(said) <= _SHOWN else f"{said[: _SHOWN // 2]}\n[...]\n{said[-_SHOWN // 2 :]}"

    return as_tool(python)


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
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
    properties = tool.parameters.get("properties") or {}
    if tool.parameters.get("additionalProperties") in (None, False):
        unknown = [key for key in arguments if key not in properties]
        if unknown:
            return f"{tool.name}: unknown argument {unknown[0]}; it takes {', '.join(properties) or 'none'}"
    missing = [key for key in tool.parameters.get("required") or () if key not in arguments]
    if missing:
        return f"{tool.name}: the argument {missing[0]} is missing; it takes {', '.join(properties)}"
    from jsonschema import Draft202012Validator

    error = next(Draft202012Validator(_nullable(tool.parameters)).iter_errors(dict(arguments)), None)
    if error is None:
        return None
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{tool.name}: argument {place}: {error.message}" if place else f"{tool.name}: {error.message}"


def _nullable(schema: Any) -> Any:
    """Rewrites ``nullable``, by which transformers marks what may be null, as a type of JSON schema."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _nullable(value) for key, value in schema.items()}
    kind = plain.get("type")
    if plain.get("nullable") is True and isinstance(kind, str):
        plain["type"] = [kind, "null"]
    return plain
