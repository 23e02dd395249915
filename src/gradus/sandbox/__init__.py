"""Other processes: confined ones for what is not trusted, and workers for our own code. Imports the core alone."""

from gradus.sandbox.command import Finished, run_python, run_sandboxed, sandbox_works
from gradus.sandbox.locks import FolderLock
from gradus.sandbox.worker import Worker, WorkerError, WorkerLimit

__all__ = [
    "Finished",
    "FolderLock",
    "Worker",
    "WorkerError",
    "WorkerLimit",
    "run_python",
    "run_sandboxed",
    "sandbox_works",
]
