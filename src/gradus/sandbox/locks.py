"""A folder that one process writes to at a time."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from gradus.core.errors import StorageError
from gradus.core.files import clear_half_written

_NAME = ".lock"


class FolderLock:
    """The right to write to a folder, from when it is made until :meth:`release`, or until the process ends in any way.

    Raises StorageError if another process has it; the message names the process. This process may hold it several times.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder.absolute() / _NAME, timeout=0, is_singleton=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            holder = (folder / _NAME).read_text(encoding="utf-8", errors="replace").strip()
            raise StorageError(
                f"{folder} is in use by {holder or 'another process'}; wait until it has ended, or choose another folder"
            ) from error
        except OSError as error:
            raise StorageError(f"{folder} cannot be written to: {error.strerror or error}") from error
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        (folder / _NAME).write_text(f"process {os.getpid()} ({command})", encoding="utf-8")
        clear_half_written(folder)

    def release(self) -> None:
        """Let others write. An empty folder is removed, so that what failed to begin leaves no trace."""
        if {path.name for path in self.folder.glob("*")} <= {_NAME}:
            (self.folder / _NAME).unlink(missing_ok=True)
            with suppress(OSError):  # something came meanwhile
                self.folder.rmdir()
        self._lock.release()
