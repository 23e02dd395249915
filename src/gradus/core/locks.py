"""A folder that one process writes to at a time."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import IO

from gradus.core.errors import StorageError

__all__ = ["FolderLock"]

_NAME = ".lock"


class FolderLock:
    """Held from the moment it is made until :meth:`release`, or until the process ends in any way.

    Raises StorageError if another holds it; the message says who.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (folder / _NAME).open("a+", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{folder} cannot be written to: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise StorageError(
                f"{folder} is in use by {holder}; wait until it has ended, or choose another folder"
            ) from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]})")
        self._file.flush()

    def release(self) -> None:
        """Let others write. The file stays: removing it would let two processes hold two files of one name."""
        self._file.close()
