"""A clock that a busy machine does not push, so that what an audit asks within its limits does not depend on who else is at work."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["own_time"]

_WAITED = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, ready without one, and how often


def own_time() -> float:
    """Seconds by the clock, without those in which this thread was ready and had no core. Only Linux tells those."""
    try:
        waited = int(_WAITED.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        waited = 0
    return time.monotonic() - waited / 1e9
