"""Processes that answer calls, one at a time: scripts for code that we cannot bound or import here, and forks of this process.

Calls and replies are JSON. A script has a dict ``HANDLERS`` of functions; it may run under another Python, with packages that
conflict with ours. Its hash seed is fixed, so that sets are walked in one order everywhere.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

from gradus.core.errors import GradusError
from gradus.core.values import is_table
from gradus.sandbox import clock, worker_loop
from gradus.sandbox.channel import Channel
from gradus.sandbox.confinement import confine, refuse_calls
from gradus.sandbox.syscalls import refused_calls

_START = 120  # seconds that imports may take
# The sandbox covers /run by a file system of the fork alone: any number of them have one name and do not meet.
_CONFINED_FOLDER = "/run/gradus"

_PYTHONS: set[str] = set()  # that scripts run under
_HARMLESS = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV")  # variables that a confined process keeps
_HARMLESS_BEGINNINGS = ("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_")

Handlers = Mapping[str, Callable[..., Any]]


class WorkerError(GradusError):
    """A call raised in the worker. ``type`` is the exception's name there."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type


class WorkerLimit(WorkerError):
    """A call went over its limit of time or memory; the worker was ended and the next call starts a new one."""


def _result(fields: Mapping[str, Any]) -> Any:
    """Return the result in a reply. Raises WorkerError if the call raised, BrokenPipeError for anything else."""
    if "result" in fields:
        return fields["result"]
    error = fields.get("error")
    if not is_table(error):
        raise BrokenPipeError("the other process sent something else than a reply")
    kind = str(error.get("type"))
    message = str(error.get("message"))
    if kind in ("OutOfCpuTime", "MemoryError"):
        raise WorkerLimit(kind, message)
    raise WorkerError(kind, message)


class Worker:
    """A script that answers calls. It starts with the first call and ends with this process.

    ``cpu_seconds``: CPU time of one call; by the clock it may take twelve times as long, so that a busy machine changes no
    result. ``memory``: bytes of address space, 0 for no limit.
    """

    def __init__(
        self, script: Path, *, python: str = sys.executable, cpu_seconds: int = 10, memory: int = 4 * 2**30
    ) -> None:
        self._command = [python, "-u", worker_loop.__file__, str(script), str(memory)]
        _PYTHONS.update((python, os.path.realpath(python)))
        self._cpu_seconds = cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._channel = Channel(-1, -1)
        self._owner = 0  # the process that started it: a fork starts its own
        self._lock = Lock()

    def start(self) -> None:
        """Start now instead of with the first call. Raises WorkerError with what the script raised."""
        with self._lock:
            self._start()

    def call(self, method: str, **params: Any) -> Any:
        """Return the handler's result. Raises WorkerError if it raised, WorkerLimit if it was cut off."""
        request = {"method": method, "params": params, "cpu_seconds": self._cpu_seconds}
        with self._lock:
            self._start()
            return self._reply(request, 12 * self._cpu_seconds, self._cpu_seconds)

    def close(self) -> None:
        """End the process; a later call starts it again."""
        with self._lock:
            self._end()

    def _is_running(self) -> bool:
        """Say whether the process of this process lives; a fork of it starts its own."""
        if self._process is None or self._owner != os.getpid():
            return False
        return self._process.poll() is None

    def _start(self) -> None:
        """Start the process unless it runs, and wait until its script is loaded."""
        if self._is_running():
            return
        self._end()
        self._owner = os.getpid()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                # OpenBLAS takes address space for each thread, so that a machine of many cores would pass the limit at the import.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"},
                start_new_session=True,  # Ctrl-C is for the process that asks
            )
        except OSError as error:
            raise WorkerError("OSError", f"{self._command[0]} cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        atexit.register(self.close)
        clock.watch(self._process.pid)
        try:
            self._reply({"method": "ready", "params": {}}, _START, _START)
        except WorkerError as error:
            self._end()
            if isinstance(error, WorkerLimit):  # not of a call: all answers would be compared as wrong
                raise WorkerError(error.type, f"{self._command[3]} did not start: {error}") from error
            raise

    def _reply(self, request: Mapping[str, Any], seconds: float, limit: float) -> Any:
        """Return the reply to a request. ``limit``: the seconds that a message names."""
        process = self._process
        assert process is not None
        try:
            return _result(self._channel.ask(request, seconds))
        except WorkerError:
            raise
        except OSError as error:  # of which TimeoutError is one
            # A process whose pipe has closed is about to end, and its code says more.
            with suppress(subprocess.TimeoutExpired):
                process.wait(0 if isinstance(error, TimeoutError) else 1)
            self._end()
            if process.returncode > 0:
                raise WorkerLimit("WorkerLimit", f"the worker ended with code {process.returncode}") from error
            raise WorkerLimit("WorkerLimit", f"took more than {limit} s, or more memory than it may") from error
        except BaseException:
            self._end()  # a call that was broken off must not leave its reply to the next one
            raise

    def _end(self) -> None:
        """End the process; a fork lets go of it and does not end its parent's."""
        process = self._process
        self._process = None
        if process is not None:
            clock.forget(process.pid)
            if self._owner == os.getpid():
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):  # a fork may have closed what it did not need
                        stream.close()
        atexit.unregister(self.close)


@cache  # by process: a fork of this one holds a folder of its own
def _process_folder(process: int) -> str:
    """Return a folder of this process alone, ``gradus0`` or the next that no other process holds.

    The lock on it ends with the process, so that no other process can take a name that one of its forks has freed.
    """
    folders = (os.path.join(tempfile.gettempdir(), f"gradus{number}") for number in itertools.count())
    return next(filter(_holds, folders))


def _holds(folder: str) -> bool:
    """Take a folder for as long as this process lives, and clear what an earlier process left in it. False if another has it."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    # The folder of temporary files is everybody's: another user may have put a folder or a link in this place.
    if os.lstat(folder).st_uid != os.getuid() or not os.path.isdir(folder):
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    # The handle stays open: closing it would give the lock up.
    for name in os.listdir(folder):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    return True


def _plain_folder() -> str:
    """Make a folder with a plain name, the same in each run: it stands in answers, and a grader may run only plain ones."""
    number = 0
    while True:
        folder = os.path.join(_process_folder(os.getpid()), str(number))
        try:
            os.mkdir(folder)
            return folder
        except FileExistsError:
            number += 1


def import_folders() -> list[str]:
    """Return the folders that this Python, and those of scripts, import from."""
    homes = [os.path.dirname(os.path.dirname(python)) for python in (sys.executable, *_PYTHONS)]
    folders = [sys.prefix, sys.base_prefix, *homes, *(path or os.getcwd() for path in sys.path)]
    return list(dict.fromkeys(os.path.abspath(path) for path in folders if os.path.isdir(path) and path != "/"))


def _forget_variables() -> None:
    """Keep only harmless variables of the environment, also where the kernel shows those that this process began with."""
    harmless = {
        name: value for name, value in os.environ.items() if name in _HARMLESS or name.startswith(_HARMLESS_BEGINNINGS)
    }
    os.environ.clear()
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
    start, end = map(int, fields[47:49])  # env_start and env_end of proc(5)
    # Clearing os.environ leaves them in /proc/self/environ.
    ctypes.memset(start, 0, end - start)
    os.environ.update(harmless)


class Fork:
    """A fork of this process that answers calls, shut in by the sandbox if ``confined``.

    ``handlers`` makes the functions, in the fork, and gets a folder with a plain path, the same in each run: the path stands in answers,
    and a grader may refuse others. A confined fork can write nowhere else. It reads the system's folders, those that Python imports from,
    and ``readable`` ones; of the environment's variables it has a few harmless ones.
    """

    def __init__(self, handlers: Callable[[Path], Handlers], *, confined: bool, readable: Sequence[str] = ()) -> None:
        self._readable = readable
        self._folder = _CONFINED_FOLDER if confined else _plain_folder()
        request_reader, request_writer = os.pipe()
        reply_reader, reply_writer = os.pipe()
        self._files = (reply_reader, request_writer)
        self._channel = Channel(reply_reader, request_writer)
        # Before the fork: it is written once for all forks, and its warning is for this process's error stream.
        refused = refused_calls() if confined else None
        self._pid = os.fork()
        if self._pid == 0:
            # Without these ends the fork sees when the other side closes.
            os.close(reply_reader)
            os.close(request_writer)
            self._serve(handlers, request_reader, reply_writer, refused)
        os.close(request_reader)
        os.close(reply_writer)
        clock.watch(self._pid)

    def call(self, method: str, seconds: float, **params: Any) -> Any:
        """Return the handler's result. Raises TimeoutError, or another OSError if the process died or sent nonsense."""
        request = {"method": method, "params": params}
        try:
            return _result(self._channel.ask(request, seconds))
        except WorkerError as error:  # handlers catch what graders raise
            raise BrokenPipeError(str(error)) from error

    def end(self) -> None:
        """End the process and remove its folder."""
        clock.forget(self._pid)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for file in self._files:
            os.close(file)
        if self._folder != _CONFINED_FOLDER:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self, handlers: Callable[[Path], Handlers], reads: int, writes: int, refused: bytes | None) -> NoReturn:
        """Answer requests until the other side closes. ``refused``: the filter of a confined fork, None for another."""
        folder = self._folder
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)  # what a grader prints would stand in the audit's own output
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            try:
                if refused is not None:
                    _forget_variables()
                    confine(folder, keep=(reads, writes), only=[*import_folders(), *self._readable], changes_user=False)
                    refuse_calls(refused)
                    tempfile.tempdir = os.environ["TMPDIR"] = os.environ["HOME"] = folder
                answers = handlers(Path(folder))
            except OSError as error:
                answers = worker_loop.raising(OSError(f"the sandbox could not be set up: {error}"))
            with open(reads, encoding="utf-8") as requests, open(writes, "w", encoding="utf-8") as replies:
                worker_loop.answer(answers, requests, replies)
        finally:
            os._exit(0)  # without the exit handlers of the process that it is a fork of
