"""The manifest of a run folder: what each stage was made from, what it wrote, and what it cost.

"Is this the same run?" is asked here alone. A stage is the same if its settings and its data are; code that has changed since is said, and
does not stop a run.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from gradus.core import ConfigError, StorageError
from gradus.core.documents import MANIFEST, SCHEMA, ManifestDocument, StageRecord, read_document
from gradus.core.files import digest, write_json
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict, flattened
from gradus.evidence.stage_files import changed_files, remove_stages, stage_files
from gradus.runs.recipe.record import Recipe
from gradus.training.config import GrpoConfig
from gradus.training.lesson_config import SftConfig

# The stages that a stage builds on: if one of these is done again, so must the stage be.
UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "plan": (),
    "model": (),
    "audit": (),
    "teach": (),
    "sft": ("model", "teach"),
    "distill": ("model", "sft"),
    "grpo": ("sft", "distill"),
    "eval": ("grpo",),
    "doctor": ("grpo", "eval"),
}

TRAINING = ("model", "sft", "distill", "grpo")  # each begins with the model of the one before it

# A run's own models as policies -> the stage folder, and whether they are greedy.
CHECKPOINTS: Mapping[str, tuple[str, bool]] = {
    "base": ("model", False),
    "base-greedy": ("model", True),
    "prompted": ("model", False),
    "sft": ("sft", False),
    "sft-greedy": ("sft", True),
    "distill": ("distill", False),
    "distill-greedy": ("distill", True),
    "grpo": ("grpo", False),
    "grpo-greedy": ("grpo", True),
}

# The models before any training.
UNTRAINED = [name for name, (stage, _) in CHECKPOINTS.items() if stage == "model"]

_CONFIGS = {"sft": SftConfig, "grpo": GrpoConfig}
# Settings that change no number, such as the number of threads.
_RESOURCES = {f"{stage}.{key}" for stage, config in _CONFIGS.items() for key in config.resources}
_SHOWN = 4  # settings in an error


@frozen_record
class StageInputs:
    """What a stage is made from."""

    settings: Json  # of the recipe
    # Digests by a name for each.
    data: Mapping[str, str] = field(default_factory=dict[str, str])
    code: Mapping[str, str] = field(default_factory=dict[str, str])


def stage_names(recipe: Recipe) -> list[str]:
    """Returns the stages that a recipe has, in order."""
    absent = ["plan"]  # it is made before the run, for it changes the recipe
    if not recipe.teach.enabled:
        absent += ["teach", "sft"]
    if not recipe.distill:
        absent.append("distill")
    return [name for name in UPSTREAM if name not in absent]


class Manifest:
    """``manifest.json`` of a run folder.

    A stage that is done is skipped. One whose settings or data have changed since is refused, or with ``redo`` done again together with all that
    builds on it. With ``writing`` false it is only read: one process of several writes.
    """

    def __init__(self, folder: Path, *, redo: bool = False, writing: bool = True) -> None:
        self.folder, self.redo, self.writing = folder, redo, writing
        self.path = folder / MANIFEST
        self._stages: dict[str, StageRecord] = {}
        self._summaries: dict[str, str] = {}
        if self.path.exists():
            document = read_document(self.path, ManifestDocument)
            self._stages, self._summaries = document["stages"], document["summaries"]

    def done(self, stage: str, inputs: StageInputs) -> bool:
        """True if ``stage`` can be skipped. Raises ConfigError if it was begun with other settings or data, without redo.

        Settings that change no number (``resources`` of SFT and GRPO) may differ.
        """
        record = self._stages.get(stage)
        if record is None:
            return False
        # JSON has lists for tuples: both sides are compared as they are stored.
        now = json.loads(json.dumps(inputs.settings))
        differing = _differences(record["settings"], now)
        # Resources bound memory and speed; a run that was broken off may go on with others.
        resources = [row for row in differing if row[0] in _RESOURCES]
        settings = [row for row in differing if row[0] not in _RESOURCES]
        data = _changed(record["data"], inputs.data)
        code = _changed(record["code"], inputs.code)
        has_other_inputs = bool(settings or data)
        if has_other_inputs:
            self._require_redo(stage, settings, data)
        # Changed code alone is no reason to refuse: a comment may be all that is new. --redo takes it for one.
        if has_other_inputs or (code and self.redo):
            self._forget(stage)
            return False
        if resources and not record["done"]:
            rows = [f"{key} = {json.dumps(new)} (it was {json.dumps(old)})" for key, old, new in resources]
            print(f"{stage} goes on with {', '.join(rows)}", file=sys.stderr)
        for name in code:
            print(f"{stage}: {name} has changed since; --redo does the stage again", file=sys.stderr)
        return record["done"] and self._is_as_written(stage, record["outputs"])

    def begun(self, stage: str) -> bool:
        """True if ``stage`` was begun."""
        return stage in self._stages

    @property
    def plan(self) -> Json:
        """What the look at the base stored: its ``settings``, its ``probe``, and the ``plan`` of time. Empty if it was not taken to its end."""
        record = self._stages.get("plan")
        return record["cost"] if record and record["done"] else {}

    @property
    def planned_seconds(self) -> Mapping[str, float]:
        """The seconds that are planned for each stage; empty without a plan."""
        return self.plan.get("plan", {}).get("seconds", {})

    def leave_out(self, stages: Collection[str]) -> None:
        """With redo, forget the stages that are not among ``stages``: they are another recipe's, and reports and costs would show them.

        Raises ConfigError if there are any and redo is off.
        """
        absent = [name for name in self._stages if name not in (*stages, "plan")]
        if absent and not self.redo:
            other = f"{self.folder} holds the stage {absent[0]!r} of another recipe, which this one leaves out"
            raise ConfigError(
                f"{other}; choose another folder with --out, or remove it and what builds on it with --redo"
            )
        for name in absent:
            if name in self._stages:  # what builds on a stage is forgotten with it
                self._forget(name)

    @contextmanager
    def doing(self, stage: str, inputs: StageInputs) -> Generator[JsonDict]:
        """Do a stage: the cost that is filled in here is stored; seconds and ``paid`` add up over resumed tries."""
        before, cost = 0.0, JsonDict()
        earlier = self._stages.get(stage)
        if earlier is not None:  # it was broken off: what it took and what servers were paid stays counted
            before = earlier["seconds"]
            cost = {key: value for key, value in earlier["cost"].items() if key == "paid"}
        self._stages[stage] = {**asdict(inputs), "outputs": {}, "done": False, "seconds": before, "cost": cost}  # pyright: ignore[reportArgumentType]
        record = self._stages[stage]
        # Before the work, so that a kill leaves the settings that its files were made with.
        self._write()
        started = time.perf_counter()
        try:
            yield cost
            record["outputs"] = stage_files(self.folder, stage)
            record["done"] = True
        finally:
            record["seconds"] = round(before + time.perf_counter() - started, 2)
            # A stage that left nothing and cost nothing may be tried again with other settings.
            if record["done"] or cost.get("paid") or any(self.folder.glob(f"{stage}/*")):
                self._write()
            else:
                self._forget_failed(stage)

    def seconds(self, stage: str) -> float:
        """Returns the seconds that a stage has taken, over all tries."""
        return self._stages[stage]["seconds"]

    def seconds_for(self, stage: str) -> float | None:
        """Returns what the plan of time leaves for a stage: the time less what all stages took so far, and what is planned after it. None without one."""
        limit = self.plan.get("plan", {}).get("limit")
        if limit is None:
            return None
        # The limit is of the whole run: what earlier stages took longer, this one has less.
        taken = sum(record["seconds"] for record in self._stages.values())
        after = sum(self.planned_seconds.get(name, 0.0) for name in _downstream(stage))
        return limit - taken - after

    def keep(self, *names: str) -> None:
        """Store the checksums of files that belong to no stage."""
        self._summaries = {name: digest(self.folder / name) for name in names}
        self._write()

    def costs(self) -> list[JsonDict]:
        """One row a stage, in order: stage, seconds, and what else it reported. The plan's is called ``probe``, as in the plan itself."""
        rows: list[JsonDict] = []
        for name in UPSTREAM:
            if name not in self._stages:
                continue
            record = self._stages[name]
            row: JsonDict = {"stage": name, **record["cost"]}
            if name == "plan":
                row = {"stage": "probe"}  # beside it the settings and the plan are stored, which are no costs
            row["seconds"] = record["seconds"]
            if row["stage"] in self.planned_seconds:
                row["planned"] = self.planned_seconds[row["stage"]]
            rows.append(row)
        return rows

    def _require_redo(self, stage: str, settings: list[tuple[str, Any, Any]], data: list[str]) -> None:
        """Raises ConfigError if a stage with other inputs may not be done again."""
        # A nano model that nothing was trained from is made again in a second, and a plan is no work to lose.
        is_free = stage == "plan" or (stage == "model" and self._stages.keys() <= {"plan", "model"})
        if self.redo or is_free:
            return
        rows = [f"{key} was {json.dumps(old)}, is now {json.dumps(new)}" for key, old, new in settings[:_SHOWN]]
        reasons = [f"settings ({'; '.join(rows)})", *data] if rows else data
        onward = ""
        if stage == "grpo" and (self.folder / "grpo" / "best").is_dir():
            onward = f" (with --model {shlex.quote(str(self.folder))} from these weights, with a new optimizer)"
        raise ConfigError(
            f"{self.folder} holds a stage {stage!r} made with other {' and other '.join(reasons)}; "
            f"choose another folder with --out{onward}, or do it and what builds on it again with --redo"
        )

    def _is_as_written(self, stage: str, outputs: Mapping[str, str]) -> bool:
        """True if a stage's files are those that it wrote; otherwise redo forgets it. Raises StorageError that names them."""
        changed = changed_files(self.folder, outputs)
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
        if self.writing:
            remove_stages(self.folder, names)
        for name in names:
            self._stages.pop(name, None)
        self._summaries = {}
        self._write()

    def _forget_failed(self, stage: str) -> None:
        """Forget a stage that failed before it left anything: it may be tried with other settings."""
        self._stages.pop(stage)
        with suppress(OSError):  # it is not there
            (self.folder / stage).rmdir()
        if self._stages:
            self._write()
        elif self.writing:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                self.folder.rmdir()

    def _write(self) -> None:
        """Store the manifest, in the process that writes."""
        if self.writing:
            write_json(self.path, {"schema": SCHEMA, "stages": self._stages, "summaries": self._summaries})


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names whose digest is another one now."""
    return [name for name, value in now.items() if before.get(name, value) != value]


def _downstream(stage: str) -> list[str]:
    """The stages that build on a stage, directly or by others."""
    names = [stage]
    for name, needs in UPSTREAM.items():  # in order, so that what a stage needs was looked at before it
        if not set(names).isdisjoint(needs):
            names.append(name)
    return names[1:]


def _differences(old: Json, new: Json) -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both."""
    before, now = flattened(old), flattened(new)
    rows = [(key, before.get(key), now.get(key)) for key in dict.fromkeys([*before, *now])]
    return [(key, was, value) for key, was, value in rows if was != value]
