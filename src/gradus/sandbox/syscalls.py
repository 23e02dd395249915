"""The system calls that the sandbox refuses, as a filter that libseccomp writes for this machine's kernel."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
import tempfile
from functools import cache

_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_FAIL_WITH = 0x00050000  # and the number of the error
_DIFFERS = 1  # libseccomp's comparisons of an argument
_HAS_BITS = 7
_NEW_USER = 0x10000000
_SHARED_ANONYMOUS = 0x21
_ALWAYS = (
    "shmget semget msgget memfd_create memfd_secret "  # memory that belongs to no process
    "add_key request_key keyctl "  # keys that all processes of a user share
    "unshare setns mount umount2 pivot_root fsopen fsmount open_tree move_mount "
    "ptrace process_vm_readv process_vm_writev bpf perf_event_open userfaultfd "
    "io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load"
)
_RULES: list[tuple[str, int, tuple[int, int, int, int] | None]] = [
    *((name, errno.EPERM, None) for name in _ALWAYS.split()),
    ("clone", errno.EPERM, (0, _HAS_BITS, _NEW_USER, _NEW_USER)),
    ("clone3", errno.ENOSYS, None),  # its flags cannot be seen; C libraries then call clone
    ("socket", errno.EAFNOSUPPORT, None),
    ("socketpair", errno.EAFNOSUPPORT, (0, _DIFFERS, socket.AF_UNIX, 0)),
    ("mmap", errno.EPERM, (3, _HAS_BITS, _SHARED_ANONYMOUS, _SHARED_ANONYMOUS)),  # it stays when no process shows it
]


@cache
def refused_calls() -> bytes:
    """Return the filter as the kernel takes it: empty if libseccomp is not there, with one line on stderr that says so."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        lost = "memory that processes share, keys of the kernel, sockets and user namespaces are not refused in the sandbox"
        print(f"warning: {_LIBRARY} was not found, so {lost}; install libseccomp", file=sys.stderr)
        return b""
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    for name, error, condition in _RULES:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # this kernel's architecture or this library does not know it
            continue
        conditions = [struct.pack("IiQQ", *condition)] if condition else []
        library.seccomp_rule_add_array(context, _FAIL_WITH | error, number, len(conditions), b"".join(conditions))
    with tempfile.TemporaryFile() as file:
        library.seccomp_export_bpf(context, file.fileno())
        library.seccomp_release(context)
        file.seek(0)
        return file.read()
