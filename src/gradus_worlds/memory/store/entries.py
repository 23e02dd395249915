"""The records of a memory: an entry, an operation that changed it, and the error of a call that was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.core import GradusError, StorageError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One short note. ``timestamp``: when it holds from, as told; ``source``: index of the chunk that it came from.

    ``created`` and ``updated`` are the memory's own clock: a date in a world, UTC time outside.
    """

    id: int
    bank: str
    content: str
    timestamp: str | None = None
    source: int | None = None
    importance: float = 0.5
    created: str | None = None
    updated: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One line of the log. ``kind`` is insert, update, delete or core; the entry is the one after it (before a delete)."""

    sequence: int
    kind: str
    at: str | None = None
    entry: Entry | None = None
    core: str | None = None

    def to_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {"sequence": self.sequence, "kind": self.kind, "at": self.at}
        if self.entry is not None:
            line["entry"] = self.entry.to_json()
        if self.core is not None:
            line["core"] = self.core
        return line

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Operation:
        """The inverse of :meth:`to_json`; a StorageError says what does not fit."""
        try:
            entry = data.get("entry")
            return cls(
                sequence=data["sequence"],
                kind=data["kind"],
                at=data.get("at"),
                entry=Entry(**entry) if entry is not None else None,
                core=data.get("core"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"expected a memory operation, got {str(data)[:120]!r} ({error})") from error


class RefusedCall(GradusError):
    """A tool call that was not carried out. ``code`` names the kind; the message is what the policy is told."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
