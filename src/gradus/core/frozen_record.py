"""The form of the library's records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_record(cls: type[T]) -> type[T]:
    """Makes a dataclass that does not change, and whose fields are named where one is made."""
    return dataclass(frozen=True, kw_only=True)(cls)
