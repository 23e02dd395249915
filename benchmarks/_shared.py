"""What several benchmarks do alike: the last line for machines, and the peak memory of a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def print_line(name: str, *, ratio: float, ours: float, other: float, unit: str, runs: int, **more: Any) -> None:
    """Prints the JSON line that ends a benchmark."""
    figures = {"ratio": round(ratio, 3), "ours": round(ours, 4), "other": round(other, 4)}
    print(json.dumps({"name": name, **figures, "unit": unit, "runs": runs, **more}))


def status_kib(name: str) -> int:
    """Returns a size from /proc/self/status. getrusage begins with what the parent held when it forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0])
