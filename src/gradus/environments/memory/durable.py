"""A memory on disk that survives being killed at any moment.

A folder with ``memory.json`` (its schema) and ``operations.jsonl``. An operation is one line, a checksum in front; it is
written and flushed to the disk (fsync) before it takes effect and before the caller hears of it. A kill can leave at most one
torn line at the end, of an operation that nobody was told of; it is dropped when the memory is next opened.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from gradus.core import StorageError
from gradus.environments.memory.entries import Operation
from gradus.environments.memory.schema import NINE_BANKS, Schema
from gradus.environments.memory.store import Memory

__all__ = ["DurableMemory"]

_HEADER, _LOG, _LOCK = "memory.json", "operations.jsonl", "lock"


class DurableMemory(Memory):
    """A :class:`Memory` in a folder. Opening replays its log; one process may hold it at a time.

    Use it as a context manager, or call :meth:`close`.

    Raises:
        StorageError: the folder is held by another process, is no memory, or its log is damaged before its end.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        schema: Schema | None = None,
        *,
        clock: Callable[[], str | None] | None = None,
        create: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self._file: int | None = None
        self._lock: int | None = None
        self._waiting: list[bytes] | None = None
        self._open_folder(schema or NINE_BANKS, create)
        try:
            stored = _read_schema(self.folder / _HEADER)
            if schema is not None and schema != stored:
                raise StorageError(
                    f"the memory in {self.folder} has schema {stored.name!r}, asked for was {schema.name!r}; "
                    "leave the schema out, or use another folder"
                )
            super().__init__(stored, clock=clock or _utc_now)
            self._recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up the folder. Nothing is left to be written."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def __enter__(self) -> DurableMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Many changes with one flush. Nothing in the block is promised until it has ended; a kill keeps a beginning of it."""
        self._waiting = []
        try:
            yield
        finally:
            lines, self._waiting = self._waiting, None
            if lines:
                self._write(b"".join(lines))

    def take_over(self, other: Memory) -> None:
        """Make an empty memory a copy of another, ids and log included.

        Raises:
            StorageError: this memory has operations already, or other banks.
        """
        if self.operations:
            raise StorageError(
                f"the memory in {self.folder} is not empty; import its entries instead, or use a new folder"
            )
        if other.schema != self.schema:
            raise StorageError(f"the memory has schema {other.schema.name!r}, the folder {self.schema.name!r}")
        with self.batch():
            for operation in other.operations:
                self._commit(operation)

    def _commit(self, operation: Operation) -> None:
        if self._file is None:
            raise StorageError(f"the memory in {self.folder} is closed")
        if self._waiting is not None:
            self.apply(operation)
            self._waiting.append(_line(operation))
            return
        self._write(_line(operation))
        self.apply(operation)

    def _write(self, line: bytes) -> None:
        """Append to the log and flush it to the disk; on an error the log stays as it was and the memory is closed."""
        assert self._file is not None
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, start)
            self.close()
            raise StorageError(f"the memory in {self.folder} could not be written to: {error}") from error

    def _open_folder(self, schema: Schema, create: bool) -> None:
        header = self.folder / _HEADER
        if not create and not header.exists():
            raise StorageError(f"there is no memory in {self.folder}; make one by inserting into it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not header.exists():
                _write_header(header, schema)
            self._file = os.open(self.folder / _LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _sync_folder(self.folder)
        except BlockingIOError as error:
            self.close()
            raise StorageError(f"the memory in {self.folder} is in use by another process; try again later") from error
        except OSError as error:
            self.close()
            raise StorageError(f"the memory in {self.folder} cannot be opened: {error}") from error

    def _recover(self) -> None:
        assert self._file is not None
        raw = (self.folder / _LOG).read_bytes()
        good = 0
        while good < len(raw):
            end = raw.find(b"\n", good)
            operation = None if end < 0 else _read_line(raw[good:end])
            if operation is None:
                if end >= 0 and end + 1 < len(raw):
                    number = raw.count(b"\n", 0, good) + 1
                    raise StorageError(f"line {number} of {self.folder / _LOG} is damaged, with more lines behind it")
                os.ftruncate(self._file, good)
                os.fsync(self._file)
                return
            self.apply(operation)
            good = end + 1


def _line(operation: Operation) -> bytes:
    body = json.dumps(operation.to_json(), separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _read_line(line: bytes) -> Operation | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    return Operation.from_json(json.loads(body))


def _write_header(path: Path, schema: Schema) -> None:
    aside = path.with_name(path.name + ".part")
    with aside.open("w", encoding="utf-8") as file:
        json.dump({"format": "gradus-memory-folder/1", "schema": asdict(schema)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _read_schema(path: Path) -> Schema:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != "gradus-memory-folder/1":
            raise StorageError(f"{path} is of format {data['format']!r}, expected gradus-memory-folder/1")
        return Schema(**data["schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} does not describe a memory: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
