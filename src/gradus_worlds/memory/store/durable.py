"""A memory on disk that survives being killed at any moment: a folder with one SQLite file.

A change is flushed to the disk before the caller hears of it. After a clean end the file's checksum stands beside it, so that a
single flipped bit is found when the memory is next opened. After a kill there is no checksum; then every row is read and checked.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus.core.files import digest, write_text
from gradus.sandbox.locks import FolderLock
from gradus_worlds.memory.store.entries import Operation
from gradus_worlds.memory.store.memory import Memory, schema_from
from gradus_worlds.memory.store.schema import NINE_BANKS, Schema
from gradus_worlds.memory.store.sqlite_shelf import SqliteShelf

_FILE, _CHECKSUM = "memory.sqlite", "memory.sha256"
_FORMAT = "gradus-memory-folder/2"


class DurableMemory(Memory):
    """A :class:`Memory` in a folder; one process may hold it at a time. :attr:`entries` and :attr:`operations` read all rows.

    ``schema`` and ``first_id`` are a new memory's; one that is there keeps its own.

    Use it as a context manager, or call :meth:`close`.

    Raises:
        StorageError: the folder is held by another process, is no memory, or its file is damaged.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        schema: Schema | None = None,
        *,
        clock: Callable[[], str | None] | None = None,
        create: bool = True,
        first_id: int = 1,
    ) -> None:
        self.folder = Path(folder)
        self._closed = True
        if not create and not (self.folder / _FILE).exists():
            raise StorageError(f"there is no memory in {self.folder}; make one by inserting into it")
        lock = FolderLock(self.folder)
        try:
            with self._told():
                clean = self._ended_clean()
                shelf = SqliteShelf(self.folder / _FILE)
                try:
                    if not clean:
                        shelf.check()
                    stored, first = self._header(shelf, schema, first_id)
                    if not shelf.indexed:
                        (self.folder / _CHECKSUM).unlink(missing_ok=True)
                        with shelf.transaction():
                            shelf.index_anew()
                except BaseException:
                    shelf.close()
                    raise
        except BaseException:
            lock.release()
            raise
        super().__init__(stored, first_id=first, clock=clock or utc_now, shelf=shelf)
        self._disk, self._lock, self._closed = shelf, lock, False

    def close(self) -> None:
        """Give up the folder. Nothing is left to be written."""
        if self._closed:
            return
        self._closed = True
        with self._told():
            self._disk.close()
            if not (self.folder / _CHECKSUM).exists() and not (self.folder / f"{_FILE}-wal").exists():
                write_text(self.folder / _CHECKSUM, digest(self.folder / _FILE))
            self._lock.release()

    def __enter__(self) -> DurableMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Many changes with one flush: all of them are kept, or none if the block ends with an error or a kill."""
        own: list[Exception] = []  # an error of the caller's, which says nothing of the memory
        try:
            with self._writing():
                try:
                    yield
                except (sqlite3.Error, OSError) as error:
                    own.append(error)
                    raise
        except StorageError as told:
            if own and told.__cause__ is own[0]:
                raise own[0] from None
            raise

    def mark(self, name: str) -> None:
        """Keep a mark, together with the changes of the same :meth:`batch`."""
        with self._writing():
            self._disk.keep_fact(f"mark {name}", "set")

    def marked(self, name: str) -> bool:
        """Whether there is such a mark."""
        return self._disk.fact(f"mark {name}", "") == "set"

    def take_over(self, other: Memory) -> None:
        """Make an empty memory a copy of another, ids and log included.

        Raises:
            StorageError: this memory has operations already, or other banks.
        """
        if self.changes:
            raise StorageError(
                f"the memory in {self.folder} is not empty; import its entries instead, or use a new folder"
            )
        if other.schema != self.schema:
            raise StorageError(f"the memory has schema {other.schema.name!r}, the folder {self.schema.name!r}")
        with self.batch():
            for operation in other.operations:
                self._commit(operation)

    def _commit(self, operation: Operation) -> None:
        with self._writing():
            self.apply(operation)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._closed:
            raise StorageError(f"the memory in {self.folder} is closed")
        with self._told():
            (self.folder / _CHECKSUM).unlink(missing_ok=True)
            with self._disk.transaction():
                yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite and the system refuse, in a sentence."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                message = f"{self.folder / _FILE} is damaged: {error}; copy it from a backup"
            else:
                message = f"the memory in {self.folder} cannot be used: {error}"
            raise StorageError(message) from error

    def _ended_clean(self) -> bool:
        """Whether there is a checksum of a clean end. Raises StorageError if the file is not what it was then."""
        stored = self.folder / _CHECKSUM
        if not stored.exists():
            return False
        if stored.read_text(encoding="utf-8") != digest(self.folder / _FILE):
            raise StorageError(
                f"{self.folder / _FILE} is damaged: it is not what was written (see {stored.name}); copy it from a backup"
            )
        return True

    def _header(self, shelf: SqliteShelf, asked: Schema | None, first_id: int) -> tuple[Schema, int]:
        """The schema and the first id of the file, which are written into a new one."""
        header: Any = json.loads(shelf.fact("memory", "null"))
        if header is None:
            header = {"format": _FORMAT, "schema": asdict(asked or NINE_BANKS), "first_id": first_id}
            with shelf.transaction():
                shelf.keep_fact("memory", json.dumps(header))
                shelf.begin_at(first_id)
        if header["format"] != _FORMAT:
            raise StorageError(f"{shelf.path} is of format {header['format']!r}, expected {_FORMAT}")
        stored = schema_from(header["schema"])
        if asked is not None and asked != stored:
            raise StorageError(
                f"the memory in {self.folder} has schema {stored.name!r}, asked for was {asked.name!r}; "
                "leave the schema out, or use another folder"
            )
        return stored, header.get("first_id", 1)


def utc_now() -> str:
    """This second as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
