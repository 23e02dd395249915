"""The installed ``tinker`` package, whose types and protobuf messages are the schema of the wire."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module, metadata
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from gradus.core import ConfigError
from gradus.core.errors import first_line
from gradus.interop.serving.requests import ApiError


@cache
def _part(name: str) -> Any:
    """Returns a module of the package. Raises ConfigError if the package is missing, or is one without that module."""
    try:
        return import_module(f"tinker.{name}")
    except ImportError as error:
        raise ConfigError(
            f"the Tinker API needs the package tinker, 0.24 or later ({first_line(error)}); pip install 'gradus-rl[tinker]'"
        ) from error


def messages() -> Any:
    """The protobuf messages."""
    return _part("proto.tinker_public_pb2")


def check_sdk() -> None:
    """Raises ConfigError if the package cannot serve as a schema."""
    messages()
    _forward_body("forward_backward_input")


def check_client(version: str) -> None:
    """Raises ApiError for a client that is later than the package here, which does not have all that it sends."""
    here = metadata.version("tinker")
    if _release(version) > _release(here):
        raise ApiError(f"this server has the package tinker {here}, you {version[:40]}; install one version for both")


def _release(version: str) -> list[int]:
    """Its first two numbers."""
    return [int(part) for part in re.findall(r"\d{1,6}", version)[:2]]


def parse(name: str, body: bytes) -> Any:
    """Reads the JSON of a request by the SDK's type ``name``. Raises ApiError, 400, for what that type does not take."""
    return _read(getattr(_part("types"), name), body)


def parse_forward(body: bytes, field: str) -> Any:
    """Reads the JSON of a forward or forward_backward request, whose data stand in ``field``."""
    return _read(_forward_body(field), body)


def _read(kind: type[BaseModel], body: bytes) -> Any:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ApiError(f"{place or 'the body'}: {first['msg']}", code="invalid_request") from None


@cache
def _forward_body(field: str) -> type[BaseModel]:
    """The envelope of a batch in JSON: later versions of the SDK have its content alone, as they send protobuf."""
    content = _part("types._pydantic_types.forward_backward_input").ForwardBackwardInput
    # Type and default of each; ... is a field without one.
    fields: dict[str, Any] = {"model_id": (str, ...), "seq_id": (int | None, None), field: (content, ...)}
    return create_model("ForwardBody", **fields)
