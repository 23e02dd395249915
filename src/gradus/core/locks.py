"""A folder that one process writes to at a time."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar
from weakref import WeakSet

from gradus.core.errors import StorageError
from gradus.core.files import clear_half_written

_NAME = ".lock"


class FolderLock:
    """Held from the moment it is made until :meth:`release`, or until the process ends in any way.

    Raises StorageError if another holds it; the message says who.
    """

    _mine: ClassVar[WeakSet[FolderLock]] = WeakSet()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = self._locked()
        if not os.fstat(self._file.fileno()).st_nlink:  # its holder let the folder go meanwhile, and the file went
            self._file.close()
            self._file = self._locked()
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]})")
        self._file.flush()
        self._mine.add(self)
        clear_half_written(folder)

    def __del__(self) -> None:
        """A lock that nobody holds any more is let go; Python would warn of a file that was left open."""
        if hasattr(self, "_file"):
            self._file.close()

    def _locked(self) -> IO[str]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / _NAME).open("a+", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be written to: {error.strerror or error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise StorageError(
                f"{self.folder} is in use by {holder}; wait until it has ended, or choose another folder"
            ) from error
        return file

    @staticmethod
    def held_here(folder: Path) -> bool:
        """Whether this process holds a folder that could not be locked. The number alone does not say so: each container counts its own."""
        try:
            there, holder = os.stat(folder / _NAME), (folder / _NAME).read_text(encoding="utf-8")
        except OSError:
            return False
        held = (lock._file for lock in list(FolderLock._mine) if not lock._file.closed)
        mine = any(os.path.samestat(os.fstat(file.fileno()), there) for file in held)  # also if the folder was moved
        return mine and holder.startswith(f"process {os.getpid()} ")

    def release(self) -> None:
        """Let others write. A folder in which nothing else was left goes, so that what failed to begin leaves no trace."""
        if {path.name for path in self.folder.glob("*")} <= {_NAME}:
            (self.folder / _NAME).unlink(missing_ok=True)
            with suppress(OSError):  # something came meanwhile
                self.folder.rmdir()
        self._file.close()
