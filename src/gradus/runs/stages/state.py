"""Records the stages of a run that are done, their settings and their cost."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, StorageError
from gradus.core.documents import Stages, read_document
from gradus.core.files import digest, write_json
from gradus.evidence.stage_files import changed_files, remove_stages, stage_files
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import DistillConfig, SftConfig

# What a stage builds on: if one of these is done again, so must the stage be.
UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "model": (),
    "audit": (),
    "teach": (),
    "sft": ("model", "teach"),
    "distill": ("model", "sft"),
    "grpo": ("sft", "distill"),
    "eval": ("grpo",),
    "doctor": ("grpo", "eval"),
}

# What a run's own models are called as policies -> the stage folder, and whether they are greedy.
CHECKPOINTS: Mapping[str, tuple[str, bool]] = {
    "base": ("model", False),
    "base-greedy": ("model", True),
    "sft": ("sft", False),
    "sft-greedy": ("sft", True),
    "distill": ("distill", False),
    "distill-greedy": ("distill", True),
    "grpo": ("grpo", False),
    "grpo-greedy": ("grpo", True),
}

_RESOURCES = {
    f"{name}.{key}"
    for name, config in (("sft", SftConfig), ("distill", DistillConfig), ("grpo", GrpoConfig))
    for key in config.resources
}


@dataclass(frozen=True)
class MadeFrom:
    """The inputs of a stage. ``settings``: of the recipe; ``sources``: data and code -> a digest."""

    settings: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)


class RunState:
    """A run folder's memory of its stages, in ``state.json``.

    A stage that is done is skipped. One whose settings, data or code have changed since is refused, or with ``redo`` done again together with
    all that builds on it.
    """

    def __init__(self, folder: Path, *, redo: bool = False) -> None:
        self.folder = folder
        self.redo = redo
        self.path = folder / "state.json"
        stored: Stages = read_document(self.path, Stages) if self.path.exists() else {"stages": {}}
        self._stages: dict[str, Any] = dict(stored["stages"])
        self._files = stored.get("files", {})

    def done(self, stage: str, made: MadeFrom) -> bool:
        """True if ``stage`` can be skipped. Raises ConfigError if it was begun with other settings or sources, without redo.

        Settings that change no number (``resources`` of SFT and GRPO) may differ.
        """
        entry = self._stages.get(stage)
        if entry is None:
            return False
        differing = _differences(entry["settings"], json.loads(json.dumps(made.settings)))
        changed = [each for each in differing if each[0] not in _RESOURCES]
        before: Mapping[str, str] = entry.get("sources", {})
        other = [name for name, value in made.sources.items() if before.get(name, value) != value]
        if not changed and not other:
            return bool(entry["done"]) and self._as_written(stage, entry.get("files", {}))
        if not self.redo:
            shown = "; ".join(f"{key} was {json.dumps(old)}, is now {json.dumps(new)}" for key, old, new in changed[:4])
            what = [f"settings ({shown})"] if changed else []
            trained = stage == "grpo" and (self.folder / "grpo" / "best").is_dir()
            onward = f" (with --model {shlex.quote(str(self.folder))} from these weights)" if trained else ""
            raise ConfigError(
                f"{self.folder} holds a stage {stage!r} made with other {' and other '.join([*what, *other])}; "
                f"choose another folder with --out{onward}, or do it and what builds on it again with --redo"
            )
        self._forget(stage)
        return False

    def leave_out(self, stages: Collection[str]) -> None:
        """With redo, forget the stages that are not among ``stages``, which another recipe wanted: reports and costs would show them.

        Raises ConfigError if there are any and redo is off.
        """
        others = [name for name in self._stages if name not in stages]
        if others and not self.redo:
            raise ConfigError(
                f"{self.folder} holds the stage {others[0]!r} of another recipe, which this one leaves out; choose another folder "
                "with --out, or remove it and what builds on it with --redo"
            )
        for name in others:
            if name in self._stages:  # what builds on a stage is forgotten with it
                self._forget(name)

    @contextmanager
    def doing(self, stage: str, made: MadeFrom) -> Iterator[dict[str, Any]]:
        """Do a stage: the cost that is filled in here is stored when it ends well; seconds add up over resumed tries."""
        before = self._stages.get(stage, {}).get("cost", {}).get("seconds", 0.0)
        self._stages[stage] = {**vars(made), "done": False, "cost": {"seconds": before}}
        self._write()
        cost: dict[str, Any] = {}
        started = time.perf_counter()
        try:
            yield cost
            self._stages[stage] |= {"done": True, "files": stage_files(self.folder, stage)}
        finally:
            cost["seconds"] = round(before + time.perf_counter() - started, 2)
            self._stages[stage]["cost"] = cost
            if self._stages[stage]["done"] or (self.folder / stage).exists():
                self._write()
            else:
                self._unbegun(stage)

    def keep(self, *names: str) -> None:
        """Store the checksums of files that belong to no stage."""
        self._files = {name: digest(self.folder / name) for name in names}
        self._write()

    def costs(self) -> list[dict[str, Any]]:
        """One row a stage, in order: stage, seconds, and what else it reported."""
        return [{"stage": name, **self._stages[name]["cost"]} for name in UPSTREAM if name in self._stages]

    def _as_written(self, stage: str, files: Mapping[str, str]) -> bool:
        """True if a stage's files are those that it wrote; otherwise redo forgets it. Raises StorageError that names them."""
        changed = changed_files(self.folder, files)
        if changed and not self.redo:
            raise StorageError(
                f"{', '.join(changed)} in {self.folder} is damaged or gone: it is not what the stage {stage!r} wrote there; "
                "restore it, or do the stage and what builds on it again with --redo"
            )
        if changed:
            self._forget(stage)
        return not changed

    def _forget(self, stage: str) -> None:
        """Remove a stage's output and everything that builds on it."""
        names = [stage, *_downstream(stage)]
        remove_stages(self.folder, names)
        for name in names:
            self._stages.pop(name, None)
        self._files = {}
        self._write()

    def _unbegun(self, stage: str) -> None:
        """Forget a stage that failed before it left anything: it may be tried with other settings."""
        self._stages.pop(stage)
        if self._stages:
            self._write()
            return
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            self.folder.rmdir()

    def _write(self) -> None:
        files = {"files": self._files} if self._files else {}
        write_json(self.path, {"schema": 1, "stages": self._stages, **files})


def _downstream(stage: str) -> list[str]:
    names: list[str] = []
    for name, needs in UPSTREAM.items():
        if stage in needs or any(each in needs for each in names):
            names.append(name)
    return names


def _differences(old: Any, new: Any, way: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key), new.get(key), f"{way}.{key}" if way else str(key))
    elif old != new:
        yield way, old, new
