"""Scores the same answers in two other processes, with two seeds of Python's hashes: by these sets are ordered.

The two are compared with each other and not with this process, whose modules may have been changed since they were imported.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gradus.core import Episode, Grader
from gradus.core.naming import import_file
from gradus.sandbox.processes import start_child

_SEEDS = (4711, 1174)
_SECONDS = 60.0
Rewards = list[float | None]


def score_elsewhere(grader: Grader, episodes: Sequence[Episode]) -> tuple[Rewards, Rewards] | None:
    """The rewards of both processes; None if the grader cannot be imported by name there, or takes too long.

    The episodes go there as a pickle, which only this process writes. The rewards come back as JSON, which is checked.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, outs = Path(folder, "asked"), [Path(folder, f"{seed}.json") for seed in _SEEDS]
        try:
            files = _ask(asked, grader, episodes)
        except Exception:  # a function that no module holds, say
            return None
        children = [
            start_child(
                f"{__name__}:score_here",
                {"files": files, "asked": str(asked), "out": str(out)},
                hash_seed=seed,
                log=Path(os.devnull),
            )
            for seed, out in zip(_SEEDS, outs, strict=True)
        ]
        try:
            if any(child.wait(_SECONDS) for child in children):
                return None
        except subprocess.TimeoutExpired:
            return None
        finally:
            for child in children:
                child.kill()
                child.communicate()
        first, second = (checked_rewards(out, len(episodes)) for out in outs)
    return None if first is None or second is None else (first, second)


def score_here(told: Mapping[str, Any]) -> None:
    """Scores the pickled episodes in this process and writes the rewards as a list."""
    for file in told["files"]:
        import_file(file, "reward")
    compute, episodes = pickle.loads(Path(told["asked"]).read_bytes())
    values = [reward.value for reward in compute(episodes)]
    Path(told["out"]).write_text(json.dumps(values), encoding="utf-8")


def checked_rewards(out: Path, n: int) -> Rewards | None:
    """Reads ``n`` rewards, each a finite number or null; None for anything else."""
    try:
        values: Any = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(values, list) or len(cast(list[Any], values)) != n:
        return None
    rows = cast(list[Any], values)
    return rows if all(v is None or (type(v) in (int, float) and math.isfinite(v)) for v in rows) else None


def _ask(asked: Path, grader: Grader, episodes: Sequence[Episode]) -> list[str]:
    """Writes the pickle; returns the files of modules that were imported from a file given by its path."""
    content = io.BytesIO()
    pickler = _Pickler(content)
    pickler.dump((grader.compute, list(episodes)))
    asked.write_bytes(content.getvalue())
    return sorted(pickler.files)


class _Pickler(pickle.Pickler):
    """Keeps the files of modules that were imported from a file given by its path."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        name = str(getattr(obj, "__module__", None))
        file = getattr(sys.modules.get(name), "__file__", None)
        if name.startswith("_gradus_") and file:
            self.files.add(file)
        return NotImplemented
