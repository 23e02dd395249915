"""Moving memories in and out of a folder: whole ones with their log, or lines of entries from anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus_worlds.memory.store.durable import DurableMemory
from gradus_worlds.memory.store.entries import RefusedCall
from gradus_worlds.memory.store.memory import Memory


@dataclass(frozen=True, kw_only=True)
class ImportSummary:
    """Entries taken in, entries that were there already, and the refusals by line or place. ``core_left_out``: the file has a core and
    the memory has another, which it keeps."""

    inserted: int
    duplicates: int
    refused: tuple[str, ...] = ()
    core_left_out: bool = False


def import_file(memory: DurableMemory, path: str | os.PathLike[str]) -> ImportSummary:
    """Take in a file: a memory that was exported (into an empty folder with ids and log, else entry by entry), or JSON lines
    ``{category, content, timestamp?, importance?}``.

    Raises:
        StorageError: the file cannot be read as either.
    """
    rows, whole = _read(Path(path))
    if whole is not None and not memory.changes and whole.schema == memory.schema:
        memory.take_over(whole)
        return ImportSummary(inserted=len(whole.entries), duplicates=0)
    if whole is not None:
        rows = [{**entry.to_json(), "category": entry.bank} for entry in whole.entries.values()]
    inserted, duplicates, refused = 0, 0, list[str]()
    with memory.batch():
        for number, row in enumerate(rows, 1):
            try:
                _insert(memory, row)
                inserted += 1
            except RefusedCall as error:
                if error.code == "duplicate":
                    duplicates += 1
                else:
                    refused.append(f"entry {number}: {error}")
        if whole is not None and whole.core and not memory.core:
            memory.set_core(whole.core)
    left_out = whole is not None and whole.core not in ("", memory.core)
    return ImportSummary(inserted=inserted, duplicates=duplicates, refused=tuple(refused), core_left_out=left_out)


def _insert(memory: DurableMemory, row: Mapping[str, Any]) -> None:
    category, content = row.get("category"), row.get("content")
    if not isinstance(category, str) or not isinstance(content, str):
        raise RefusedCall("no-content", "needs a category and a content, both strings")
    timestamp, importance = row.get("timestamp"), row.get("importance", 0.5)
    if not isinstance(timestamp, str | None) or isinstance(importance, bool) or not isinstance(importance, int | float):
        raise RefusedCall("argument-type", "timestamp must be a string and importance a number")
    memory.insert(category, content, timestamp=timestamp, importance=importance)


def _read(path: Path) -> tuple[list[Mapping[str, Any]], Memory | None]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "format" in whole:
        return [], Memory.from_json(whole)
    rows = (
        whole
        if isinstance(whole, list)
        else [_row(line, n, path) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    )
    if not all(isinstance(row, dict) for row in rows):
        raise StorageError(
            f"{path} holds something that is no entry; expected objects {{category, content, timestamp?, importance?}}"
        )
    return rows, None


def _row(line: str, number: int, path: Path) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise StorageError(f"line {number} of {path} is not JSON: {error}") from error
