"""A memory in a folder: one JSON file with its log. Every change writes the file aside, flushes it and renames it, so a kill loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gradus.core import StorageError, write_text
from gradus_worlds.memory.store.memory import Memory
from gradus_worlds.memory.store.records import NINE_BANKS, Operation, Schema

_FILE = "memory.json"


class DurableMemory(Memory):
    """A :class:`Memory` in a folder, which one process may hold at a time.

    ``schema`` and ``first_id`` are a new memory's; one that exists keeps its own. ``marks`` are names that a caller keeps with the next
    change. Use it as a context manager, or call :meth:`close`.

    Raises:
        StorageError: another process holds the folder, or it has no memory, or the file was damaged or edited.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        schema: Schema = NINE_BANKS,
        *,
        clock: Callable[[], str | None] | None = None,
        create: bool = True,
        first_id: int = 1,
    ) -> None:
        super().__init__(schema, first_id=first_id, clock=clock or utc_now)
        self.folder, self._file = Path(folder), Path(folder) / _FILE
        self.marks: set[str] = set()
        self._in_batch = False
        if not create and not self._file.exists():
            raise StorageError(
                f"expected a memory in {self.folder}, and none is there; make one with gradus memory learn"
            )
        self._lock = _locked(self.folder)
        try:
            if self._file.exists():
                self._read()
            else:
                self._write()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up the folder. Everything is written already."""
        self._lock.release()

    def __enter__(self) -> DurableMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Many changes with one writing: the file gets all of them, or none if the block ends with an error or a kill."""
        if self._in_batch:
            yield
            return
        if not self._lock.is_locked:
            raise StorageError(f"the memory in {self.folder} is closed; open it again")
        self._in_batch = True
        try:
            yield
            self._write()
        except BaseException:
            self._read()
            raise
        finally:
            self._in_batch = False

    def apply(self, operation: Operation) -> None:
        """Carry out one operation and write it."""
        with self.batch():
            super().apply(operation)

    def _write(self) -> None:
        write_text(self._file, json.dumps({**self.to_json(), "marks": sorted(self.marks)}) + "\n")

    def _read(self) -> None:
        try:
            data: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            stored = Memory.from_json(data)
        except (OSError, ValueError, StorageError) as error:
            raise StorageError(f"{self._file} is damaged: {error}; copy it from a backup") from error
        vars(self).update({**vars(stored), "clock": self.clock})
        self.marks = set(data.get("marks", ()))


def _locked(folder: Path) -> FileLock:
    """Lock a folder until the process ends."""
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock.acquire().lock
    except Timeout as error:
        raise StorageError(f"{folder} is in use by another process; wait until it has ended") from error
    except OSError as error:
        raise StorageError(f"the memory in {folder} cannot be used: {error.strerror or error}") from error


def utc_now() -> str:
    """This second as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
