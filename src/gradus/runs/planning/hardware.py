"""The memory that a run may use: that of this machine, or of a card that is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from gradus.core import ConfigError

GIB = 2**30
_KEPT_FREE = 0.92  # of a card: the rest is the driver's and the libraries'


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A device: ``kind`` is cpu or cuda, ``memory`` the bytes that a run may use."""

    name: str
    kind: str
    memory: float


def this_machine() -> Hardware:
    """The card of this machine and its free memory, or its processor."""
    import torch

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return Hardware(name=torch.cuda.get_device_name(), kind="cuda", memory=float(free))
    return Hardware(name="this processor", kind="cpu", memory=_available_memory())


def card_of(memory: str) -> Hardware:
    """A card of ``24GB`` or ``24``. Cards are sold by GiB, whatever is printed on them. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:G|GB|GiB)?\s*", memory, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--memory takes gigabytes, as in 24GB, got {memory!r}")
    return Hardware(name=f"a card of {memory}", kind="cuda", memory=_KEPT_FREE * float(match[1]) * GIB)


def _available_memory() -> float:
    """Bytes that new programs may use; a control group's limit if it is lower."""
    free = float(psutil.virtual_memory().available)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, float(text) - used)
    return free
