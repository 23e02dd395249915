"""Running what is not trusted: no network, no other processes, one folder that can be written, and limits on all that it may use."""

from __future__ import annotations

import marshal
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from gradus.sandbox import confinement
from gradus.sandbox.confinement import SCRATCH, confine, is_confined
from gradus.sandbox.syscalls import refused_calls

_OUTPUT = 1 << 20  # bytes
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a command. ``code`` is None if a limit ended it, and ``limit`` names it: time, output, memory or processes.

    A negative ``code`` is the signal that ended it.
    """

    code: int | None
    stdout: str
    stderr: str
    limit: str | None = None


@dataclass
class _RunningCommand:
    """A command under way: its process, the pipe that says how it ended, and what it has written so far."""

    process: subprocess.Popen[bytes]
    report: IO[bytes]
    texts: dict[str, bytearray] = field(default_factory=dict[str, bytearray])

    def end(self) -> None:
        """End it and all that it started; in the sandbox the first process inside ends with its parent."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@cache
def sandbox_works() -> bool:
    """Say whether this machine lets a process be confined; tried once, in a child."""
    with tempfile.TemporaryDirectory() as scratch:
        child = os.fork()
        if child == 0:
            try:
                confine(scratch, only=())
            except OSError:
                os._exit(1)
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0


def run_python(
    code: str,
    *,
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    seconds: float = 10.0,
    unsafe: bool = False,
) -> Finished:
    """Run Python code as :func:`run_sandboxed` does, with this interpreter and the packages that are installed beside it."""
    files = {**(files or {}), "main.py": code}
    return run_sandboxed([sys.executable, "main.py"], files=files, stdin=stdin, seconds=seconds, unsafe=unsafe)


def run_sandboxed(
    command: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    seconds: float = 10.0,
    memory: int = 1 << 30,
    unsafe: bool = False,
) -> Finished:
    """Run a command. Raises OSError if no sandbox can be made, and never runs the command then.

    It works in an empty folder of 16 MiB that is gone afterwards, and reads nothing but the system's folders and this Python's.
    ``files`` (name -> text) are written there first. It sees no network, no process but its own and few environment variables. It ends
    with all its children after ``seconds`` by the clock, beyond ``memory`` bytes of all of them together, 64 processes or a mebibyte of
    output. ``unsafe`` runs it without a sandbox, bounded in time, memory of one process and output alone.

    Called in a process that is confined itself, as the audit confines graders, it shares that sandbox, reads and writes no more than it
    would in its own, and sees the other processes there.
    """
    with ExitStack() as stack:
        inside = is_confined()
        folder = SCRATCH
        if unsafe or inside:  # SCRATCH is another's there
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        request = {
            "command": list(command),
            "folder": folder,
            "files": dict(files or {}),
            "stdin": stdin,
            "only": _python_folders(),
            "memory": memory,
            "cpu_seconds": math.ceil(seconds),
            "refused": b"" if unsafe else refused_calls(),
            "confined": not unsafe and not inside,
            "restricted": not unsafe and inside,
            "environ": {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "HOME": folder},
        }
        deadline = time.monotonic() + seconds
        run = _start(request, stack)
        limit = _follow(run, deadline)
        return _finished(run, limit)


def _start(request: dict[str, Any], stack: ExitStack) -> _RunningCommand:
    """Start the process that confines itself and then becomes the command. ``stack`` ends it and closes its pipes."""
    reader, writer = os.pipe()
    report = stack.enter_context(os.fdopen(reader, "rb"))
    with os.fdopen(writer, "wb"):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", confinement.__file__],  # isolated: nothing of the user's runs before
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(writer,),
            env={},
            start_new_session=True,
        )
    run = _RunningCommand(stack.enter_context(process), report)
    stack.callback(run.end)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        # marshal is built in; importing json would take longer than the rest of the child's start.
        process.stdin.write(marshal.dumps({**request, "report": writer}))
    return run


def _follow(run: _RunningCommand, deadline: float) -> str | None:
    """Read what it says until it ends; the limit that it ran into, if one ended it."""
    with selectors.DefaultSelector() as selector:
        for name, stream in (("stdout", run.process.stdout), ("stderr", run.process.stderr), ("report", run.report)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, name)
            run.texts[name] = bytearray()
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                run.end()
                return "time"
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                run.texts[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            if len(run.texts["stdout"]) + len(run.texts["stderr"]) > _OUTPUT:
                run.end()
                return "output"
    return None  # all three pipes have closed


def _finished(run: _RunningCommand, limit: str | None) -> Finished:
    """Read how it ended. Raises OSError if it could not be confined, and then it did not run."""
    kind, _, value = run.texts["report"].decode().partition(" ")
    if kind == "problem":
        raise OSError(
            f"this machine allows no sandbox ({value}), so nothing was run; allow Linux user namespaces (in a "
            "container: by its seccomp profile), or run without one on purpose (unsafe)"
        )
    if kind == "limit" and not limit:
        limit = value
    code = int(value) if kind == "code" else None
    # Without a sandbox, or inside of another one, nobody watches and reports; the command is the process itself.
    if code is None and not limit:
        code = run.process.wait()
    if code == -signal.SIGXCPU:
        limit = "time"
    stdout, stderr = (run.texts[name][:_OUTPUT].decode("utf-8", "replace") for name in ("stdout", "stderr"))
    return Finished(code=None if limit else code, stdout=stdout, stderr=stderr, limit=limit)


def _python_folders() -> list[str]:
    """Return the folders of this interpreter and its packages."""
    folders = (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent.parent))
    return list(dict.fromkeys([*folders, *map(os.path.realpath, folders)]))
