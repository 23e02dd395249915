"""Checksums beside files, so that a flipped byte is found before anything is done with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradus.core.errors import StorageError

_NAME = "SHA256SUMS"  # as `sha256sum --check` reads it
_CARD = "README.md"  # for people, who may change it; an upload has another one


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in ``folder`` beside them, but for its card."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (_NAME, _CARD))
    lines = [f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / _NAME).write_text("".join(lines), encoding="utf-8")


def check_checksums(folder: Path) -> None:
    """Compare the files in ``folder`` with their checksums, if it has any. Raises StorageError that names what differs."""
    if not (folder / _NAME).is_file():
        return
    try:
        lines = (folder / _NAME).read_text(encoding="utf-8").splitlines()
        stored = [line.split("  ", 1) for line in lines]
        damaged = [name for known, name in stored if name != _CARD and digest(folder / name) != known]
    except (OSError, ValueError) as error:
        raise StorageError(f"{folder} is damaged: it cannot be compared with its {_NAME} ({error})") from error
    if damaged:
        raise StorageError(
            f"{folder} is damaged: {', '.join(damaged)} is not what was written (see {_NAME} there). Restore it, or "
            f"delete {folder / _NAME} if you changed it yourself"
        )


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
