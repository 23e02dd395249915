"""The run folder: metrics that grow line by line, and files that are either whole or not there.

::

    metrics.jsonl            one JSON object a line, see docs/metrics.md
    config.json              what the run was started with
    splits.json              which tasks were trained on and which judge
    checkpoints/step-000040/ everything a run needs to go on
    best/, final/            ordinary Hugging Face folders
    episodes/                samples of the rollouts
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from gradus.core import ConfigError, StorageError
from gradus.core.files import write_text
from gradus.core.metrics import read_records
from gradus.core.values import Json, JsonDict
from gradus.policies.local.folders import model_kind
from gradus.sandbox.locks import FolderLock

CONFIG = "config.json"
METRICS = "metrics.jsonl"


class RunFolder:
    """Metrics and settings of one training run. With ``writing`` false it only reads: one process of several writes.

    ``observer`` is given every record of the metrics once it is written.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        writing: bool = True,
        observer: Callable[[Json], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.writing = writing
        self.observer = observer
        self._lock: FolderLock | None = None

    @property
    def metrics(self) -> Path:
        """The metrics file."""
        return self.path / METRICS

    def open(self, config: BaseModel, *, resume: bool) -> None:
        """Begin a run here, or go on with the one that is here. Whether it is the same run is the caller's question.

        Raises ConfigError if the folder holds a run already and ``resume`` is false. ``resume`` without a run is said, and begins one: a job
        that is started again may not have come so far.
        """
        if not self.writing:
            return
        if model_kind(self.path):
            raise ConfigError(f"{self.path} holds a model and no run; choose another folder with --out")
        self._lock = FolderLock(self.path)
        stored = self.path / CONFIG
        if stored.exists() and not resume:
            raise ConfigError(f"{self.path} holds a run already; go on with resume, or choose another folder")
        if resume and not stored.exists():
            print(f"{self.path} holds no run to resume; a new one begins there", file=sys.stderr)
        # Last: with this file the run has begun.
        write_text(stored, config.model_dump_json(indent=2) + "\n")

    def append(self, record: Json) -> None:
        """Add one line to the metrics, whole or not at all. Undefined figures (NaN, infinities) become null."""
        if not self.writing:
            return
        line = json.dumps(_finite(record), allow_nan=False) + "\n"
        before = self.offset()
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            # Half a line would make the whole file unreadable.
            self.truncate(before)
            raise StorageError(
                f"could not write {self.metrics}: {error}; free some space, and go on with resume"
            ) from error
        if self.observer is not None:
            self.observer(record)

    def forget_beginning(self) -> None:
        """Remove what :meth:`open` and the metrics wrote if no step was taken, so that the folder can be used again."""
        checkpoints = self.path / "checkpoints"
        if not self.writing or any(checkpoints.glob("step-*")):
            return
        if any(record.get("kind") in ("step", "sft", "distill") for record in self.records()):
            return
        self.metrics.unlink(missing_ok=True)
        shutil.rmtree(checkpoints, ignore_errors=True)
        for name in (CONFIG, "splits.json"):
            (self.path / name).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def offset(self) -> int:
        """Length of the metrics file in bytes; 0 without one."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def truncate(self, offset: int) -> None:
        """Cut the metrics back to what had been written at a checkpoint."""
        if not self.writing:
            return
        if self.offset() < offset:
            raise StorageError(
                f"{self.metrics} is shorter than the checkpoint remembers ({offset} bytes); it was changed by hand"
            )
        if self.metrics.exists():
            os.truncate(self.metrics, offset)

    def records(self) -> list[JsonDict]:
        """All metrics so far. Raises StorageError if a line is damaged."""
        if not self.metrics.exists():
            return []
        return read_records(self.metrics)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in cast(Sequence[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
