"""Reading what a run stored. What is missing or broken becomes a sentence, never an error: a report says what it lacks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from gradus.core import StorageError
from gradus.core.documents import (
    MANIFEST,
    AuditRecord,
    Costs,
    Description,
    Diagnoses,
    PromiseOutcome,
    Results,
    ShownEpisodes,
    read_document,
)
from gradus.core.files import read_text
from gradus.core.frozen_record import frozen_record
from gradus.core.metrics import read_records
from gradus.core.values import JsonDict

T = TypeVar("T")
NOT_STORED = ": not stored"
_EPISODES = "report/episodes.json.gz"
_SFT, _DISTILL = "sft/metrics.jsonl", "distill/metrics.jsonl"
_PARTS = (
    "results.json",
    "audit.json",
    MANIFEST,
    "doctor.json",
    _SFT,
    _DISTILL,
    "grpo/metrics.jsonl",
    "report/about.json",
    _EPISODES,
)


@frozen_record
class RunRecord:
    """All that a report is made of. A part that a run did not store is None or empty, and ``missing`` says so."""

    name: str
    path: str = ""  # of its folder, as commands take it; empty if no folder holds its episodes
    results: Results | None = None
    about: Description | None = None
    episodes: ShownEpisodes | None = None
    audit: AuditRecord | None = None
    doctor: Diagnoses | None = None
    costs: Costs | None = None
    recipe: str | None = None
    sft: Sequence[JsonDict] = ()
    grpo: Sequence[JsonDict] = ()
    missing: Sequence[str] = ()
    seeds: Mapping[str, RunRecord] = field(default_factory=dict[str, "RunRecord"])  # if there are several, by name

    @property
    def seconds(self) -> float:
        """The time that all stages took."""
        return sum(stage["seconds"] for stage in self.costs["stages"]) if self.costs else 0.0

    @property
    def settings(self) -> JsonDict:
        """The recipe's settings; empty if there is none, or if it cannot be read."""
        # A recipe that was edited by hand must not cost the report.
        try:
            return tomllib.loads(self.recipe or "")
        except (ValueError, RecursionError):
            return {}

    @property
    def teacher(self) -> str:
        """The policy that taught the student; empty if no recipe names one."""
        return str(self.settings.get("teach", {}).get("policy", ""))

    @property
    def promises(self) -> Sequence[PromiseOutcome]:
        """The recipe's promises, as the run judged them from the results."""
        return self.results.get("promises", ()) if self.results else ()


class _RunReader:
    """Reads the files of a folder, and notes in ``missing`` which are absent or damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: list[str] = []

    def _read(self, path: str, what: str, read: Callable[[Path], T]) -> T | None:
        file = self.folder / path
        if not file.is_file():
            self.missing.append(f"{what} ({path}){NOT_STORED}")
            return None
        try:
            return read(file)
        except StorageError as error:
            self.missing.append(f"{what} ({path}): {error}")
            return None

    def document(self, path: str, what: str, kind: type[T]) -> T | None:
        return self._read(path, what, lambda file: read_document(file, kind))

    def metrics(self, path: str, what: str) -> list[JsonDict]:
        """The records of a metrics file; none of a file with a line that cannot be read, or an invalid figure."""
        return self._read(path, what, read_records) or []

    def recipe(self) -> str | None:
        # A recipe is stored at the end: without one nothing is missing yet.
        has_recipe = (self.folder / "recipe.toml").is_file()
        return self._read("recipe.toml", "the recipe", read_text) if has_recipe else None


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; see docs/report.md for its files."""
    reader = _RunReader(folder)
    results = reader.document("results.json", "the evaluation", Results)
    if seed_folders(folder):
        return _of_seeds(reader, evaluated_seeds(seed_folders(folder), results), results)
    # A run may have a distillation in place of SFT.
    has_sft = (folder / _SFT).is_file() or not (folder / _DISTILL).is_file()
    return RunRecord(
        name=_name(folder),
        path=_path(folder),
        results=results,
        about=reader.document("report/about.json", "the environment's description", Description),
        episodes=reader.document(_EPISODES, "the episodes to browse", ShownEpisodes),
        audit=reader.document("audit.json", "the audit of the grader", AuditRecord),
        doctor=reader.document("doctor.json", "the doctor's diagnoses", Diagnoses),
        costs=reader.document("costs.json", "the costs", Costs),
        recipe=reader.recipe(),
        sft=reader.metrics(_SFT if has_sft else _DISTILL, "the curves of SFT"),
        grpo=reader.metrics("grpo/metrics.jsonl", "the curves of GRPO"),
        missing=reader.missing,
    )


def holds_a_run(folder: Path) -> bool:
    """Says if any part of a run is stored here."""
    return bool(seed_folders(folder)) or any((folder / part).is_file() for part in _PARTS)


def _name(folder: Path) -> str:
    """The folder's name, with the run's before that of a seed."""
    path = folder.absolute()
    # "seed-0" alone would say nothing of the run.
    is_seed = path in seed_folders(path.parent).values()
    return f"{path.parent.name}/{path.name}" if is_seed else path.name


def _path(folder: Path) -> str:
    """The folder as one writes it where the report is made: short if it lies below."""
    path, current = folder.absolute(), Path.cwd()
    return str(path.relative_to(current) if path.is_relative_to(current) else folder)


def seed_folders(folder: Path) -> dict[str, Path]:
    """The runs of each training seed by name (``seed 0``), in order; empty for a run of one seed."""
    paths = [path for path in folder.glob("seed-*") if re.fullmatch(r"seed--?\d+", path.name)]
    return {f"seed {_seed(path)}": path for path in sorted(paths, key=_seed)}


def _seed(folder: Path) -> int:
    return int(folder.name.removeprefix("seed-"))


def evaluated_seeds(seeds: Mapping[str, Path], results: Results | None) -> Mapping[str, Path]:
    """Those of ``seed_folders`` that the evaluation is over: an earlier call may have trained more, perhaps with other settings."""
    if results is None:
        return seeds
    evaluated = {name: path for name, path in seeds.items() if _seed(path) in results["seeds"]}
    return evaluated or seeds


def shown_folder(folder: Path) -> Path:
    """The folder whose episodes the page of a run shows: that of the first seed, if there are several."""
    return next(iter(seed_folders(folder).values()), folder)


def _of_seeds(reader: _RunReader, seeds: Mapping[str, Path], results: Results | None) -> RunRecord:
    """A run of several training seeds: what was evaluated over all of them, and the runs themselves."""
    runs = {name: read_run(path) for name, path in seeds.items()}
    first = next(iter(runs.values()))
    record = RunRecord(
        name=_name(reader.folder),
        path=_path(reader.folder),
        results=results,
        about=first.about,
        episodes=first.episodes,
        audit=reader.document("audit.json", "the audit of the grader", AuditRecord),
        costs=reader.document("costs.json", "the costs", Costs),
        recipe=reader.recipe(),
        missing=reader.missing,
        seeds=runs,
    )
    for name, run in runs.items():
        reader.missing += [f"{name}, {problem}" for problem in run.missing if not problem.endswith(NOT_STORED)]
    return record
