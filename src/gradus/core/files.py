"""Files that are either whole or not there: written aside, synced, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradus.core.errors import StorageError

__all__ = ["read_json", "write_json", "write_lines", "write_text"]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines (which bring their own line ends) so that a reader meets the old file or the new one, never half.

    Raises StorageError if the disk is full or the folder cannot be written; the old file is kept.
    """
    aside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        aside = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o644)  # temporary files are private, results are to be shared
        os.replace(aside, path)
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror or error}; nothing was changed there. "
            "Free some space or choose another folder"
        ) from error
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """:func:`write_lines` for a text that is there already."""
    write_lines(path, (text,))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises StorageError if it is not there or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StorageError(f"no file {path}") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as JSON: {error}") from error
