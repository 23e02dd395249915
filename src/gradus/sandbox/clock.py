"""A clock for limits that come out the same on a busy machine: it stands still while this process waits for a core that others hold.

It also knows the waiting of processes that work for this one, if they are watched. If the kernel does not tell (other systems than
Linux), it is a plain clock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_waited: dict[int, float] = {}  # by process
_watched: set[int] = set()


def now() -> float:
    """Seconds since some moment, without those that were spent waiting for a core."""
    for pid in (os.getpid(), *_watched):
        with suppress(OSError, IndexError), open(f"/proc/{pid}/schedstat", "rb") as file:
            _waited[pid] = int(file.read().split()[1]) / 1e9  # time on a core, time waiting for one, slices
    return time.monotonic() - sum(_waited.values())


def watch(pid: int) -> None:
    """From now on count what this process waits."""
    _watched.add(pid)


def forget(pid: int) -> None:
    """It has ended; what it waited stays counted."""
    _watched.discard(pid)
