"""The other end of ``gradus.sandbox.worker``: answers calls. As a script any Python from 3.9 on runs it, with the standard library alone.

``python worker_loop.py SCRIPT MEMORY_BYTES`` runs SCRIPT, which leaves a dict ``HANDLERS`` of functions, then answers one JSON
request a line, the first of them ``ready``: ``{"id", "method", "params", "cpu_seconds"}`` with ``{"id", "result"}`` or ``{"id", "error": {"type", "message"}}``.
"""

from __future__ import annotations

import json
import math
import os
import resource
import runpy
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TextIO

# Bound now: code that a grader runs may put something else in the place of json.loads, and the process must still answer.
_decode, _encode = json.JSONDecoder().decode, json.JSONEncoder(default=str).encode


class OutOfCpuTime(Exception):
    """The call used up its CPU time."""


_allowed = 0  # seconds of the call at hand


def _stop(signum: int, frame: object) -> None:
    raise OutOfCpuTime(f"took more than {_allowed} s of CPU time")


def _limit(seconds: int) -> None:
    """Python code gets an exception after ``seconds`` of CPU time; what does not react is killed soon after."""
    global _allowed
    _allowed = seconds
    signal.setitimer(signal.ITIMER_PROF, seconds)
    # Unlike the timer, a limit of the kernel counts from the start of the process.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(usage.ru_utime + usage.ru_stime) + seconds + 1, hard))


def answer(handlers: Mapping[str, Callable[..., Any]], requests: Iterable[str], replies: TextIO) -> None:
    """Answer requests until the other side closes; a request may set a limit, ``cpu_seconds``."""
    for line in requests:
        request: dict[str, Any] = _decode(line)
        try:
            if "cpu_seconds" in request:
                _limit(request["cpu_seconds"])
            result = handlers[request["method"]](**request["params"])
            _unlimited()
            reply = _encode({"id": request["id"], "result": result})
        except Exception as error:
            _unlimited()
            problem = {"type": type(error).__name__, "message": str(error)[:2000]}
            reply = _encode({"id": request["id"], "error": problem})
        print(reply, file=replies, flush=True)


def _unlimited() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)


def raising(error: Exception) -> dict[str, Callable[..., Any]]:
    """Return handlers that raise ``error`` whatever is called."""

    def call(**_: Any) -> NoReturn:
        raise error

    return defaultdict(lambda: call)


def main() -> None:
    """Answer requests until the other side closes."""
    sys.path.pop(0)  # this folder's modules must not stand before a package of the same name
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what packages print goes to the error stream
    script = sys.argv[1]
    memory = int(sys.argv[2])
    signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        handlers = {"ready": bool, **runpy.run_path(script)["HANDLERS"]}
    except Exception as error:
        handlers = raising(error)
    answer(handlers, sys.stdin, replies)


if __name__ == "__main__":
    main()
