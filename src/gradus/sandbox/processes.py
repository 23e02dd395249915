"""Processes of our own code: one way to start them, and one way in which they end.

All are fresh ones, because a fork of torch's threads may hang. They leave Ctrl-C to the process that started them, which keeps what
has been done, and end with it however it ends.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from gradus.core.errors import GradusError

_CALL = "from gradus.sandbox.processes import main; main()"


def collect_rarely() -> None:
    """Make Python look for cycles of objects less often.

    Records hold no cycles, and looking for some at every 700th object costs a fifth of a rollout's time.
    """
    gc.set_threshold(100_000, 50, 50)


def start_child(
    target: str,
    argument: Any,
    *,
    threads: int | None = None,
    hash_seed: int | None = None,
    log: Path | None = None,
) -> subprocess.Popen[str]:
    """Start a process that calls ``target`` (``module:function``) with ``argument``, a JSON value.

    What it prints goes to ``stdout``, or to the file ``log``. A GradusError becomes its last line, and code 3. ``threads``: of its
    matrix products. ``hash_seed``: of its PYTHONHASHSEED.
    """
    line = json.dumps({"target": target, "argument": argument, "path": sys.path})
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    if threads is not None:
        environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if hash_seed is not None:
        environ["PYTHONHASHSEED"] = str(hash_seed)
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", _CALL],  # -P: no file of the working folder stands before Python's own
            stdin=subprocess.PIPE,  # open as long as this process lives
            stdout=subprocess.PIPE if log is None else stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            env=environ,
            start_new_session=True,
        )
    assert process.stdin is not None
    print(line, file=process.stdin, flush=True)
    return process


def main() -> None:
    """Do what :func:`start_child` told this process."""
    message: dict[str, Any] = json.loads(sys.stdin.readline())
    sys.path[:] = message["path"]
    Thread(target=_end_with_parent, daemon=True).start()
    collect_rarely()
    module, _, name = message["target"].partition(":")
    try:
        getattr(import_module(module), name)(message["argument"])
    except GradusError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}")
        sys.exit(3)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing more is written there: it returns when the parent is gone
    os._exit(1)
