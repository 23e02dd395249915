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
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gradus.core import ConfigError, StorageError
from gradus.core.files import read_json, write_text
from gradus.core.metrics import read_records
from gradus.policies.local.folders import model_kind
from gradus.sandbox.locks import FolderLock

CONFIG = "config.json"
SOURCES = "made_from.json"  # of a stage that is trained by itself; a whole run has them in state.json
METRICS = "metrics.jsonl"


class RunFolder:
    """Metrics and settings of one training run. With ``writing`` false it only reads: one process of several writes.

    ``observer`` is given every record of the metrics once it is written.
    """

    def __init__(
        self, path: Path | str, *, writing: bool = True, observer: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.writing = writing
        self.observer = observer
        self._lock: FolderLock | None = None

    @property
    def metrics(self) -> Path:
        """The metrics file."""
        return self.path / METRICS

    def open(
        self,
        config: BaseModel,
        *,
        resume: bool,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a run here, or check that a resumed one was begun with the same settings.

        ``context`` are further settings that must not change (the model, the environment, the grader). Raises ConfigError if the folder holds a run already and ``resume`` is false, or if a setting differs; the message names it. Settings of what the run may
        use (``resources`` of the config's class) may differ; they are stored anew. ``resume`` without a run is told, and begins one: a job
        that is started again may not have come so far.
        """
        if not self.writing:
            return
        if model_kind(self.path):
            raise ConfigError(f"{self.path} holds a model and no run; choose another folder with --out")
        now = {**json.loads(config.model_dump_json()), **_placed(context or {}, self.path)}
        self._lock = FolderLock(self.path)
        stored = self.path / CONFIG
        if stored.exists() and not resume:
            raise ConfigError(
                f"{self.path} holds a run already; go on with --resume, or choose another folder with --out"
            )
        if stored.exists():
            others = _compare(read_json(stored), now, self.path, free=getattr(config, "resources", frozenset()))
            if not others:
                return
            print(f"{self.path} goes on with {others}", file=sys.stderr)
        elif resume:
            print(f"{self.path} holds no run to resume; a new one begins there", file=sys.stderr)
        write_text(stored, json.dumps(now, indent=2) + "\n")  # last: with it the run has begun

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the metrics, whole or not at all. Undefined figures (NaN, infinities) become null."""
        if not self.writing:
            return
        line = json.dumps(_finite(record), allow_nan=False) + "\n"
        before = self.offset()
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
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
        shutil.rmtree(checkpoints, ignore_errors=True)  # the best weights before the first step
        for name in (CONFIG, SOURCES, "splits.json"):
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

    def records(self) -> list[dict[str, Any]]:
        """All metrics so far. Raises StorageError if a line is damaged."""
        if not self.metrics.exists():
            return []
        return read_records(self.metrics)


def _placed(context: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with the model's folder as seen from the run, so that a run can be moved, and named in another way."""
    model = context.get("model")
    if not isinstance(model, str) or not Path(model).exists():
        return dict(context)
    path, run = Path(model).resolve(), folder.resolve()
    return {**context, "model": os.path.relpath(path, run) if run.parent in path.parents else str(path)}


def _compare(stored: Mapping[str, Any], now: Mapping[str, Any], path: Path, *, free: Collection[str]) -> str:
    """Says which settings are other than they were, in words. Raises ConfigError if one is that is not ``free`` to change."""
    others: list[str] = []
    for key in sorted({*stored, *now}):
        before, after = json.dumps(stored.get(key)), json.dumps(now.get(key))
        if before != after and key not in free:
            weights = next((path / name for name in ("final", "best") if (path / name).is_dir()), None)
            onward = "" if weights is None else f", with --model {shlex.quote(str(weights))} from this one's weights"
            raise ConfigError(
                f"cannot resume {path}: {key} was {before} and is now {after}; set it back, or begin a new run in another folder{onward}"
            )
        if before != after:
            others.append(f"{key} = {after} (it was {before})")
    return ", ".join(others)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
