"""Calling functions in another process, with limits on time and memory: for code that we cannot bound or import here.

A worker is a script with a dict ``HANDLERS`` of functions. It may run under another Python, with packages that conflict with
ours. Requests and replies are JSON lines. The hash seed is fixed, so that sets are walked in one order everywhere.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from gradus.core.errors import GradusError
from gradus.sandbox import clock

_LOOP = Path(__file__).with_name("worker_loop.py")
_START = 120  # seconds that imports may take


class WorkerError(GradusError):
    """A call raised in the worker. ``type`` is the exception's name there."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type


class WorkerLimit(WorkerError):
    """A call went over its limit of time or memory; the worker was ended and the next call starts a new one."""


class Worker:
    """A process that answers calls one at a time. It starts with the first call and ends with this process.

    ``cpu_seconds``: CPU time of one call; by the clock it may take twelve times as long, so that a busy machine changes no
    result. ``memory``: bytes of address space, 0 for no limit.
    """

    def __init__(
        self, script: Path, *, python: str = sys.executable, cpu_seconds: int = 10, memory: int = 4 * 2**30
    ) -> None:
        self._command = [python, "-u", str(_LOOP), str(script), str(memory)]
        self._cpu_seconds = cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._owner = 0  # the process that started it: a fork starts its own
        self._lock = Lock()

    def start(self) -> None:
        """Start now instead of with the first call. Raises WorkerError with what the script raised."""
        with self._lock:
            self._running()

    def call(self, method: str, **params: Any) -> Any:
        """The handler's result. Raises WorkerError if it raised, WorkerLimit if it was cut off."""
        request = {"method": method, "params": params, "cpu_seconds": self._cpu_seconds}
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            process = self._running()
            try:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
                return self._reply(12 * self._cpu_seconds, limit=self._cpu_seconds)
            except BrokenPipeError:
                self._end()
                raise WorkerLimit("WorkerLimit", "the worker ended before it answered") from None
            except WorkerError:
                raise
            except BaseException:
                self._end()  # whoever breaks the call off must not leave its reply to the next one
                raise

    def close(self) -> None:
        """End the process; a later call starts it again."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self._end()
        self._owner = os.getpid()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # OpenBLAS takes address space for each thread, so that a machine of many cores would pass the limit at the import.
                env={
                    "OPENBLAS_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONHASHSEED": "0",
                    "PYTHONWARNINGS": "ignore",
                },
                start_new_session=True,  # Ctrl-C is for the process that asks
            )
        except OSError as error:
            raise WorkerError("OSError", f"{self._command[0]} cannot be started: {error}") from error
        atexit.register(self.close)
        clock.watch(self._process.pid)
        try:
            self._reply(_START, limit=_START)
        except WorkerLimit as error:
            # It is no fault of a call: who takes a limit for a wrong answer would find all answers wrong.
            self._end()
            raise WorkerError(error.type, f"{self._command[3]} did not start: {error}") from error
        except BaseException:
            self._end()
            raise
        return self._process

    def _reply(self, seconds: float, *, limit: float) -> Any:
        """The next line, as a result. The process is ended if none comes in time; ``limit`` is what it is told to have passed."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        waiting = select.poll()  # select() takes no file beyond the 1,024th
        waiting.register(process.stdout, select.POLLIN)
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready = waiting.poll(left * 1000) if left > 0 else []
            chunk = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not chunk:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1 if ready else 0)
                self._end()
                if process.returncode > 0:
                    raise WorkerLimit("WorkerLimit", f"the worker ended with code {process.returncode}")
                raise WorkerLimit("WorkerLimit", f"took more than {limit} s, or more memory than it may")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        reply = json.loads(line)
        if "error" not in reply:
            return reply["result"]
        kind, message = reply["error"]["type"], reply["error"]["message"]
        raise (WorkerLimit if kind in ("OutOfTime", "MemoryError") else WorkerError)(kind, message)

    def _end(self) -> None:
        process, self._process, self._pending = self._process, None, b""
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
