"""Roll out tasks in a process of its own, with another PYTHONHASHSEED, and say what was seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.auditing.plans.determinism import digests
from gradus.auditing.plans.panel import blind_answers
from gradus.core import EnvironmentFault, Task

_SECONDS = 120


def replay_elsewhere(environment: str, tasks: Sequence[Task], seed: int) -> list[list[str]]:
    """Digests of the observations of every task, as another process sees them. Raises EnvironmentFault if it fails."""
    rows = [{"seed": t.seed, "condition": t.condition, "options": dict(t.options)} for t in tasks]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seen.json"
        order = json.dumps({"environment": environment, "tasks": rows, "seed": seed, "out": str(out), "path": sys.path})
        try:
            process = subprocess.run(
                [sys.executable, "-P", "-m", "gradus.runs.replay"],
                input=order,
                env={**os.environ, "PYTHONHASHSEED": "4711"},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(
                f"{environment} could not be rolled out in another process: it took more than {_SECONDS} s"
            ) from error
        if process.returncode != 0 or not out.is_file():
            said = process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise EnvironmentFault(f"{environment} could not be rolled out in another process: {said[-1][:300]}")
        return json.loads(out.read_text(encoding="utf-8"))


def _main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.read())
    sys.path[:] = order["path"]
    spec = environments.load(order["environment"])
    tasks = [Task(environment=spec.name, **row) for row in order["tasks"]]
    seen = digests(spec, tasks, blind_answers(spec, seed=order["seed"]), order["seed"])
    Path(order["out"]).write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    _main()
