"""A process without a network and with a file system that it cannot write, for graders that execute what they are given."""

from __future__ import annotations

import ctypes
import os
import resource
import struct

__all__ = ["confine", "sandbox_works"]

_NEW_USER, _NEW_NET, _NEW_MOUNT, _NEW_IPC = 0x10000000, 0x40000000, 0x00020000, 0x08000000
_MOUNT_SETATTR = 442
_RECURSIVE, _READ_ONLY = 0x8000, 1
_MEMORY = 8 << 30


def confine(scratch: str) -> None:
    """Shut this process in: only ``scratch`` (a folder, empty inside) can be written. Raises OSError if the system forbids it.

    Linux namespaces by unshare(2), a read-only view of all mounts by mount_setattr(2), limits on memory and file size.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(_NEW_USER | _NEW_NET | _NEW_MOUNT | _NEW_IPC), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 1 << 18, 0)  # propagation: private
    _checked(libc.syscall(_MOUNT_SETATTR, -100, b"/", _RECURSIVE, attributes, len(attributes)), "mount_setattr")
    _checked(libc.mount(b"tmpfs", scratch.encode(), b"tmpfs", 0, b"size=16m"), "mount")
    os.chdir(scratch)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))


def sandbox_works(scratch: str) -> bool:
    """Whether this machine lets a process be confined; tried in a child."""
    child = os.fork()
    if child == 0:
        try:
            confine(scratch)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
