"""Running what is not trusted: no network, no other processes, and a file system of which one folder can be written.

Linux namespaces by unshare(2) and mount_setattr(2): no program is needed for it, and no right beyond an ordinary user's. The file runs
as a script too, to confine a command before it starts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import IO

__all__ = ["Finished", "confine", "run_sandboxed", "sandbox_works"]

_NEW_USER, _NEW_NET, _NEW_MOUNT, _NEW_IPC, _NEW_PID = 0x10000000, 0x40000000, 0x00020000, 0x08000000, 0x20000000
_MOUNT_SETATTR, _DIE_WITH_PARENT = 442, 1
_RECURSIVE, _READ_ONLY, _PRIVATE, _BIND = 0x8000, 1, 1 << 18, 0x1000
_MEMORY = 8 << 30
_FILE = 1 << 20


def confine(scratch: str, *, keep: bool = False, hidden: Sequence[str] = (), memory: int = _MEMORY) -> None:
    """Shut this process in: only the folder ``scratch`` can be written. Raises OSError if the system forbids it.

    ``scratch`` is empty inside and what is written there is lost, unless ``keep``. ``hidden``: folders that look empty. ``memory``: bytes
    that this process may take besides what it has.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(_NEW_USER | _NEW_NET | _NEW_MOUNT | _NEW_IPC), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    place = scratch.encode()
    _set_mount(libc, b"/", (0, 0, _PRIVATE), deep=True)
    if keep:
        _checked(libc.mount(place, place, None, _BIND, None), "mount")
    _set_mount(libc, b"/", (_READ_ONLY, 0, 0), deep=True)
    if keep:
        _set_mount(libc, place, (0, _READ_ONLY, 0), deep=False)
    else:
        _checked(libc.mount(b"tmpfs", place, b"tmpfs", 0, b"size=16m"), "mount")
    for folder in hidden:
        _checked(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", _READ_ONLY, b"size=4k"), "mount")
    os.chdir(scratch)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    limit = _address_space() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@cache
def sandbox_works() -> bool:
    """Whether this machine lets a process be confined; tried once, in a child."""
    with tempfile.TemporaryDirectory() as scratch:
        child = os.fork()
        if child == 0:
            try:
                confine(scratch)
            except OSError:
                os._exit(1)
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a command came to. ``code`` is None if it was cut off. Output is cut to the limit, ``cut`` says whether."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    cut: bool = False


def run_sandboxed(
    command: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    stdin: str = "",
    seconds: float = 10.0,
    memory: int = 1 << 30,
    hidden: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    unsafe: bool = False,
) -> Finished:
    """Run a command with ``folder`` as its working directory, the only one that it can write; what it wrote stays there.

    It sees no network and no process but its own, and dies with all its children after ``seconds``. ``hidden``: folders that look empty to
    it. ``environ``: its environment variables; PATH alone if left out. Output beyond a mebibyte is
    cut. ``unsafe`` runs it without a sandbox, within the limits of time and memory only. Raises OSError if no sandbox can be made, and never runs the command then.
    """
    if not unsafe and not sandbox_works():
        raise OSError(
            "this machine allows no sandbox (Linux user namespaces); allow them, or run without one on purpose"
        )
    arguments = [str(memory), *([] if unsafe else [os.pathsep.join(hidden)])]
    start = [sys.executable, "-I", __file__, "bare" if unsafe else "confined", str(folder), *arguments, "--", *command]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        variables = dict(environ) if environ is not None else {"PATH": os.environ.get("PATH", os.defpath)}
        process = subprocess.Popen(
            start, stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=folder, env=variables, start_new_session=True
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(stdin.encode(), timeout=seconds)
                code = process.returncode
        finally:
            _kill_group(process)
        spent = time.monotonic() - began
        texts = [_text(file) for file in (out, err)]
    return Finished(
        code=code, stdout=texts[0][0], stderr=texts[1][0], seconds=spent, cut=any(each[1] for each in texts)
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and whatever it left running."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(file: IO[bytes]) -> tuple[str, bool]:
    file.seek(0)
    data = file.read(_FILE)
    return data.decode(errors="replace"), len(data) >= _FILE


def _set_mount(libc: ctypes.CDLL, place: bytes, attributes: tuple[int, int, int], *, deep: bool) -> None:
    """Set, clear and propagate attributes of the mount at ``place``, and of all below it if ``deep``."""
    packed = struct.pack("QQQQ", *attributes, 0)
    _checked(libc.syscall(_MOUNT_SETATTR, -100, place, _RECURSIVE if deep else 0, packed, len(packed)), "mount_setattr")


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _start_command(arguments: Sequence[str]) -> None:
    """The script: confine this process, then become the command in a world of processes of its own."""
    split = list(arguments).index("--")
    (mode, folder, memory, *rest), command = arguments[:split], arguments[split + 1 :]
    if mode == "bare":
        resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
        os.execvp(command[0], command)
    confine(folder, keep=True, hidden=[each for each in rest[0].split(os.pathsep) if each], memory=int(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(_NEW_PID), "unshare")
    child = os.fork()
    if child == 0:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        os.execvp(command[0], command)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    _start_command(sys.argv[1:])
