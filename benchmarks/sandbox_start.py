"""What the sandbox costs a program: the shortest Python program in it, and started plainly, in turn.

A reward such as ``code_tests`` pays this for each program, so most of its time on short programs is this.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from gradus.sandbox.command import run_python

RUNS = 31


def main() -> None:
    run_python("pass")  # the first one asks whether the interpreter starts inside
    plain: list[float] = []
    inside: list[float] = []
    for _ in range(RUNS):
        plain.append(timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        inside.append(timed(lambda: run_python("pass")))
    ours, other = statistics.median(inside) * 1000, statistics.median(plain) * 1000
    print(f"in the sandbox {ours:.1f} ms, started plainly {other:.1f} ms")
    record = {"name": "sandbox_start", "ratio": ours / other, "ours": ours, "other": other, "unit": "ms", "runs": RUNS}
    print(json.dumps(record))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
