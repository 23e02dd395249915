"""Rolls out tasks in a process of its own, with another PYTHONHASHSEED, and says what was seen."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradus import environments
from gradus.auditing.plans.determinism import digests
from gradus.auditing.plans.panel import blind_answers
from gradus.core import EnvironmentFault, Task
from gradus.core.files import read_text
from gradus.sandbox.processes import start_child

_SECONDS, _HASH_SEED = 120.0, 4711


def replay_elsewhere(environment: str, tasks: Sequence[Task], seed: int) -> list[list[str]]:
    """Digests of the observations of every task, as another process sees them. Raises EnvironmentFault if it fails."""
    rows = [{"seed": t.seed, "condition": t.condition, "options": dict(t.options)} for t in tasks]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "seen.json"), Path(folder, "said")
        told = {"environment": environment, "tasks": rows, "seed": seed, "out": str(out)}
        process = start_child(f"{__name__}:roll_out_here", told, hash_seed=_HASH_SEED, log=log)
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            log.write_text(f"it took more than {_SECONDS:g} s", encoding="utf-8")
        finally:
            process.kill()
            process.communicate()
        if not out.is_file():
            said = read_text(log).strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise EnvironmentFault(f"{environment} could not be rolled out in another process: {said[-1][:300]}")
        return json.loads(out.read_text(encoding="utf-8"))


def roll_out_here(told: Mapping[str, Any]) -> None:
    """Rolls out in this process, which :func:`replay_elsewhere` started."""
    spec = environments.load(told["environment"])
    tasks = [Task(environment=spec.name, **row) for row in told["tasks"]]
    seen = digests(spec, tasks, blind_answers(spec, seed=told["seed"]), told["seed"])
    Path(told["out"]).write_text(json.dumps(seen), encoding="utf-8")
