"""Shutting a process in: no network, no other processes, files that it cannot write, limits on memory and processes.

Linux namespaces by unshare(2), a read-only view of all mounts by mount_setattr(2), no capabilities: no program is needed for it, and no
right beyond an ordinary user's. Inside, where no further namespaces can be made, a command is kept to its folder by Landlock. As a script this file becomes the command that ``gradus.sandbox.command`` asks for.

Every sandboxed command waits for this file's imports, so they are few: json, typing and dataclasses would take longer than all the rest.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import signal
import struct
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Python names none of these calls and flags. Flags of unshare(2):
_NEW_USER = 0x10000000
_NEW_NAMESPACES = 0x6C020000  # of mounts, host names, System V objects, processes and networks
# mount_setattr(2); the call has this number on every architecture.
_MOUNT_SETATTR = 442
_RECURSIVE = 0x8000
# The same bits in mount(2) and mount_setattr(2).
_READ_ONLY = 1
_NO_SETUID = 2
_NO_DEVICES = 4
_NO_EXECUTION = 8
# mount(2) alone.
_BIND = 0x1000
_WITH_CHILDREN = 0x4000
_PRIVATE = 0x40000
# prctl(2).
_PARENT_DEATH = 1
_DUMPABLE = 4
_SECCOMP = 22
_DROP_BOUND = 24
_NO_NEW_PRIVILEGES = 38
# Landlock's calls, the question for its version, and a rule about all that lies in a folder.
_RULES = 444
_ADD_RULE = 445
_RESTRICT = 446
_VERSION = 1
_BENEATH = 1
# Landlock's rights: to read and execute; all of a device.
_READ = 0b1101
_ANY_FILE = 0b1100_0000_0000_0110
_OWN_SIGNALS = 3  # signals and abstract sockets reach no process outside
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "nix", "proc")
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_SCRATCH_BYTES = 16 << 20
_PROCESSES = 64
_POLL = 0.01  # seconds
_OWN_USERS = 0x60000000  # above every user that exists: one for each program that root runs
SCRATCH = "/tmp"  # where a command without a folder of its own works

_libc = ctypes.CDLL(None, use_errno=True)
_inside = False


def confine(
    scratch: str,
    *,
    only: Sequence[str],
    memory: int = 8 << 30,
    keep: Sequence[int] = (),
    changes_user: bool = True,
    report: int | None = None,
) -> None:
    """Shut this process in: only ``scratch`` (a folder, empty inside) can be written. Raises OSError if the system forbids it.

    The caller goes on in a process of its own, with two parents that wait for it: one outside, which ends as it ends, and one
    inside, which ends everything if there are more than 64 processes or they use more than ``memory`` bytes more than now.
    ``only``: the folders that can be read inside, besides those of the system. ``changes_user``: root then becomes another
    user, who does not read what is root's alone.
    ``keep``: open files that stay open besides output and errors. ``report``: a file descriptor that is told how it ended: "code N" or "limit NAME".
    """
    started, go = os.pipe()
    owner = _leave_namespaces()
    # A process stays in its namespace of processes; the first child is process 1 of the new one.
    first = os.fork()
    if first:
        os.write(go, b".")
        _end_as(os.waitpid(first, 0)[1])
    os.close(go)
    os.setsid()
    _close_files({1, 2, started, report, *keep})
    _mount_view(scratch, only)
    _drop_rights(owner and changes_user)
    if not os.read(started, 1):  # the parent ended before this process was bound to it
        os._exit(1)
    os.close(started)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # sigtimedwait() takes only signals that are blocked
    child = os.fork()
    if child:
        _watch(child, memory, report)
    if report is not None:
        os.close(report)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.chdir(scratch)
    _limit(memory, _PROCESSES)
    global _inside
    _inside = True


def is_confined() -> bool:
    """Say whether this process was shut in by :func:`confine`, itself or before it was forked off."""
    return _inside


def landlock_version() -> int:
    """Return the kernel's version of Landlock's interface, -1 without one: then no command runs inside a sandbox."""
    return _libc.syscall(_RULES, None, 0, _VERSION)


def restrict(scratch: str, only: Sequence[str]) -> None:
    """Shut a process that is confined already in once more: it writes in ``scratch`` alone, reads that, the system and ``only``, and
    reaches no process but its own. Raises OSError if the system has no Landlock."""
    version = _checked(landlock_version(), "Landlock")
    # A kernel refuses rights that it does not know, and its later versions know more of them.
    count = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    rights = (1 << count) - 1
    attributes = struct.pack("QQQ", rights, 0, _OWN_SIGNALS)
    if version < 6:  # it knows no signals, and a record that ends with the rights will do
        attributes = attributes[:8]
    rules = _checked(_libc.syscall(_RULES, attributes, len(attributes), 0), "Landlock")
    folders = [*only, *(f"/{name}" for name in _SYSTEM)]
    allowed = dict.fromkeys(folders, _READ) | dict.fromkeys(_DEVICES, _ANY_FILE & rights) | {scratch: rights}
    for path, right in allowed.items():
        if os.path.exists(path):
            handle = os.open(path, os.O_PATH)
            rule = struct.pack("=Qi", right, handle)
            _checked(_libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0), f"Landlock {path}")
            os.close(handle)
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _checked(_libc.syscall(_RESTRICT, rules, 0), "Landlock")
    os.close(rules)


def refuse_calls(filtered: bytes) -> None:
    """Refuse system calls here and in all that this process starts: those of a filter of ``gradus.sandbox.syscalls``."""
    if filtered:
        steps = ctypes.create_string_buffer(filtered, len(filtered))
        program = struct.pack("HP", len(filtered) // 8, ctypes.addressof(steps))
        _checked(_libc.prctl(_SECCOMP, 2, program, 0, 0), "seccomp")


def _leave_namespaces() -> bool:
    """Enter new namespaces; children are in a new one of processes. Whether this is root of the machine, who needs no user's."""
    user = os.getuid()
    group = os.getgid()
    if user == 0 and _libc.unshare(_NEW_NAMESPACES) == 0:
        return True
    _checked(_libc.unshare(_NEW_NAMESPACES | _NEW_USER), "unshare")
    # The order matters: an ordinary user may map a group only after giving up setgroups(2).
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return False


def _close_files(open_files: set[int | None]) -> None:
    """Close what is open, and read from nothing."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    numbers = set(map(int, os.listdir("/proc/self/fd")))
    for number in numbers - open_files - {0}:
        with suppress(OSError):  # the list names the handle that it was read by
            os.close(number)


def _mount_view(scratch: str, only: Sequence[str]) -> None:
    """Mount the file system as it is seen inside."""
    _mount("none", "/", "", _PRIVATE | _WITH_CHILDREN)  # or what is mounted here would show outside
    covered = [name for name in os.listdir("/") if name not in _SYSTEM]
    # What a link leads to is shown before the link: in a project that is shown, .venv may be one.
    paths = (*_DEVICES, *map(os.path.realpath, only), *only)
    shown = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    handles = {path: os.open(path, os.O_PATH) for path in shown}  # opened before they are covered
    for name in covered:
        path = f"/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            _mount("tmpfs", path, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=1m,mode=755")
    inside = [path for path in handles if path.startswith(f"{scratch}/")]  # a Python that was installed there
    for path, handle in handles.items():
        if path not in inside:
            _bring_back(path, handle)
    os.makedirs(scratch, exist_ok=True)
    _mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES | _NO_EXECUTION)
    _set_attributes("/", _READ_ONLY | _NO_SETUID | _NO_DEVICES, 0, _RECURSIVE)
    for path in _DEVICES:
        _set_attributes(path, 0, _NO_DEVICES)
    options = f"size={_SCRATCH_BYTES},nr_inodes=2048,mode=1777"
    _mount("tmpfs", scratch, "tmpfs", _NO_SETUID | _NO_DEVICES, options)
    for path in inside:
        _bring_back(path, handles[path])
        _set_attributes(path, _READ_ONLY | _NO_SETUID | _NO_DEVICES, 0, _RECURSIVE)


def _bring_back(path: str, handle: int) -> None:
    """Show at ``path`` what was opened there before it was covered."""
    source = f"/proc/self/fd/{handle}"
    if path in _DEVICES:
        with open(path, "a"):
            pass
    else:
        os.makedirs(path, exist_ok=True)
    _mount(source, path, "", _BIND | _WITH_CHILDREN)
    os.close(handle)


def _drop_rights(change_user: bool) -> None:
    """Give up all capabilities for good, root's name too if ``change_user``, and end when the parent ends."""
    user = _OWN_USERS + int.from_bytes(os.urandom(3), "little")
    # Groups go while there are capabilities, and the bound before the user: without rights neither can be changed.
    if change_user:
        os.setgroups([])
        os.setresgid(user, user, user)
    capability = 0
    while _libc.prctl(_DROP_BOUND, capability, 0, 0, 0) == 0:
        capability += 1
    if change_user:
        os.setresuid(user, user, user)
    header = struct.pack("Ii", 0x20080522, 0)  # version 3 of the interface, this process
    _checked(_libc.capset(header, bytes(24)), "capset")
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _checked(_libc.prctl(_PARENT_DEATH, int(signal.SIGKILL), 0, 0, 0), "prctl")


def _watch(child: int, memory: int, report: int | None) -> None:
    """Be the first process inside: when it ends, all end. It ends with ``child``, or if they are too many or too big."""
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    baseline = _resident("self")  # each fork shows it as its own, and it is in memory once
    while True:
        signal.sigtimedwait({signal.SIGCHLD}, _POLL)
        ended, status = _reap(child)
        running = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        pages = sum(max(_resident(name) - baseline, 0) for name in running)
        word = ""
        if len(running) > _PROCESSES:
            word = "limit processes"
        elif pages * resource.getpagesize() > memory:
            word = "limit memory"
        elif ended:
            word = f"code {os.waitstatus_to_exitcode(status)}"
        if word:
            if report is not None:
                os.write(report, word.encode())
            _end_as(status if ended else signal.SIGKILL)


def _reap(child: int) -> tuple[bool, int]:
    """Say whether ``child`` ended, with its status; other processes that ended are forgotten."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True, 0
        if process in (0, child):
            return process == child, status


def _resident(process: str) -> int:
    """Pages in memory; 0 for a process that just ended."""
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0


def _limit(memory: int, processes: int | None) -> None:
    """Limit what this process may use from now on; memory is counted beyond what it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: used + memory,
        resource.RLIMIT_FSIZE: _SCRATCH_BYTES,  # of one file
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if processes is not None:
        limits[resource.RLIMIT_NPROC] = processes + 1  # the one that watches counts
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(name, (value, value))


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2). Raises OSError."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    _checked(result, f"mount {target}")


def _set_attributes(path: str, added: int, removed: int, flags: int = 0) -> None:
    """Call mount_setattr(2) with flags to add and to remove. Raises OSError."""
    attributes = struct.pack("QQQQ", added, removed, 0, 0)
    result = _libc.syscall(_MOUNT_SETATTR, -100, path.encode(), flags, attributes, len(attributes))
    _checked(result, "mount_setattr")


def _end_as(status: int) -> None:
    """End this process as a child ended; a shell says 128 and the number for a signal."""
    if os.WIFSIGNALED(status):
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _checked(result: int, what: str) -> int:
    """Return the result of a system call. Raises OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _become(request: dict[str, Any]) -> None:
    """Become the command that ``gradus.sandbox.command`` asks for; if it cannot be confined, say why."""
    folder = request["folder"]
    memory = request["memory"]
    report = request["report"]
    os.set_inheritable(report, False)  # the command must not say how it ended
    try:
        if request["restricted"]:
            restrict(folder, request["only"])
        if request["confined"]:
            confine(folder, memory=memory, only=request["only"], report=report)
        else:
            os.chdir(folder)
            _limit(memory, None)
        refuse_calls(request["refused"])
    except OSError as error:
        os.write(report, f"problem {error}".encode())
        os._exit(1)
    # What the command reads lies in a file: a pipe of a process outside would have to be fed while it runs.
    for name, text in {**request["files"], ".stdin": request["stdin"]}.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    os.dup2(os.open(".stdin", os.O_RDONLY), 0)
    os.unlink(".stdin")
    seconds = request["cpu_seconds"]
    resource.setrlimit(
        resource.RLIMIT_CPU, (seconds, seconds + 1)
    )  # SIGXCPU can be ignored, the end a second later cannot
    command = request["command"]
    try:
        os.execvpe(command[0], command, request["environ"])
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    _become(marshal.load(sys.stdin.buffer))
