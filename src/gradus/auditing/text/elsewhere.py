"""The same answers scored in two other processes, with two seeds of Python's hashes: by these sets are ordered.

The two are compared with each other and not with this process, whose modules may have been changed since they were imported.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradus.core import Episode, Grader
from gradus.core.naming import import_file

_SEEDS = ("4711", "1174")
_SECONDS = 60.0
_CALL = "from gradus.auditing.text.elsewhere import main; main()"
Rewards = list[float | None]


def score_elsewhere(grader: Grader, episodes: Sequence[Episode]) -> tuple[Rewards, Rewards] | None:
    """The rewards of both processes; None if the grader cannot be imported by name there, or takes too long."""
    asked = io.BytesIO()
    pickler = _Pickler(asked)
    try:
        pickler.dump((grader.compute, list(episodes)))
    except Exception:  # a function that no module holds, say
        return None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "files.json").write_text(json.dumps(sorted(pickler.files)), encoding="utf-8")
        processes = [_process(seed, folder) for seed in _SEEDS]
        try:
            for process in processes:
                assert process.stdin is not None
                with process.stdin as pipe:
                    pipe.write(asked.getvalue())
            codes = [process.wait(_SECONDS) for process in processes]
        except (subprocess.TimeoutExpired, OSError):
            return None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            return None
        first, second = (json.loads(Path(folder, f"{seed}.json").read_text(encoding="utf-8")) for seed in _SEEDS)
    return first, second


def main() -> None:
    """What one of the processes does in the folder that it is told."""
    folder = Path(sys.argv[1])
    for file in json.loads(folder.joinpath("files.json").read_text(encoding="utf-8")):
        import_file(file, "reward")
    compute, episodes = pickle.load(sys.stdin.buffer)
    values = [reward.value for reward in compute(episodes)]
    folder.joinpath(f"{os.environ['PYTHONHASHSEED']}.json").write_text(json.dumps(values), encoding="utf-8")


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


def _process(seed: str, folder: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CALL, folder],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
