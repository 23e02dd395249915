"""Reading what a run stored. What is missing or broken becomes a sentence, never an error: a report says what it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus.core.documents import AuditRecord, Costs, Description, Diagnoses, Results, read_document
from gradus.core.files import read_text
from gradus.core.metrics import read_records

Json = dict[str, Any]
NOT_STORED = ": not stored"
_EPISODES = "report/episodes.json.gz"
_OLDER = "report/episodes.json"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All that a report is made of. A part that a run did not store is None or empty, and ``missing`` says so."""

    name: str
    results: Json | None = None
    about: Json | None = None
    episodes: Json | None = None
    audit: Json | None = None
    doctor: Json | None = None
    costs: Json | None = None
    recipe: str | None = None
    sft: Sequence[Json] = ()
    grpo: Sequence[Json] = ()
    missing: Sequence[str] = field(default=())
    overlaid: Mapping[str, Sequence[Json]] = field(default_factory=dict)  # training seed -> its GRPO metrics
    overlaid_sft: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    seeds: Json | None = None  # names of the training seeds, and rows of what is known of each
    path: str = ""  # of its folder, as commands take it; empty if no folder holds its episodes

    @property
    def promises(self) -> Sequence[Json]:
        """The recipe's promises, as the run judged them from the results."""
        return (self.results or {}).get("promises") or ()


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; see docs/report.md for its files."""
    missing: list[str] = []
    seeds = seed_folders(folder)

    def part(path: str, what: str, kind: Any = Json) -> Json | None:
        return read_part(folder / path, kind, f"{what} ({path})", missing)

    def lines(path: str, what: str) -> list[Json]:
        return read_lines(folder / path, f"{what} ({path})", missing)

    recipe = folder / "recipe.toml"
    if seeds:
        return _of_seeds(folder, seeds, part, missing)
    return RunRecord(
        name=_name(folder),
        path=_path(folder),
        results=part("results.json", "the evaluation", Results),
        about=part("report/about.json", "the environment's description", Description),
        episodes=part(
            _OLDER if (folder / _OLDER).is_file() and not (folder / _EPISODES).is_file() else _EPISODES,
            "the episodes to browse",
        ),
        audit=part("audit.json", "the audit of the grader", AuditRecord),
        doctor=part("doctor.json", "the doctor's diagnoses", Diagnoses),
        costs=part("costs.json", "the costs", Costs),
        recipe=_text(recipe, "the recipe (recipe.toml)", missing),
        sft=lines(_warm_start(folder), "the curves of SFT"),
        grpo=lines("grpo/metrics.jsonl", "the curves of GRPO"),
        missing=missing,
    )


def _warm_start(folder: Path) -> str:
    """The metrics of SFT, or of the distillation that a run has in its place."""
    taught, distilled = "sft/metrics.jsonl", "distill/metrics.jsonl"
    return distilled if (folder / distilled).is_file() and not (folder / taught).is_file() else taught


def holds_a_run(folder: Path) -> bool:
    """Says if any part of a run is stored here."""
    parts = (
        "results.json",
        "audit.json",
        "manifest.json",
        "doctor.json",
        "sft/metrics.jsonl",
        "distill/metrics.jsonl",
        "grpo/metrics.jsonl",
        "report/about.json",
    )
    return bool(seed_folders(folder)) or any((folder / part).is_file() for part in (*parts, _EPISODES, _OLDER))


def _name(folder: Path) -> str:
    """The folder's name, with the run's before that of a seed."""
    path = folder.absolute()
    return f"{path.parent.name}/{path.name}" if path in seed_folders(path.parent).values() else path.name


def _path(folder: Path) -> str:
    """The folder as one writes it where the report is made: short if it lies below."""
    whole, here = folder.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else folder)


def seed_folders(folder: Path) -> dict[str, Path]:
    """The runs of each training seed by name (``seed 0``), in order; empty for a run of one seed."""
    paths = [each for each in folder.glob("seed-*") if re.fullmatch(r"seed--?\d+", each.name)]
    return {f"seed {each.name[5:]}": each for each in sorted(paths, key=lambda each: int(each.name[5:]))}


def evaluated_seeds(seeds: Mapping[str, Path], results: Mapping[str, Any] | None) -> Mapping[str, Path]:
    """Those of ``seed_folders`` that the evaluation is over: an earlier call may have trained more, perhaps with other settings."""
    if results is None:
        return seeds
    return {name: each for name, each in seeds.items() if int(each.name[5:]) in results["seeds"]} or seeds


def shown_folder(folder: Path) -> Path:
    """The folder whose episodes the page of a run shows: that of the first seed, if there are several."""
    return next(iter(seed_folders(folder).values()), folder)


def _of_seeds(
    folder: Path, seeds: Mapping[str, Path], part: Callable[..., Json | None], missing: list[str]
) -> RunRecord:
    """A run of several training seeds: what was evaluated over all of them, and the curves of each."""
    results = part("results.json", "the evaluation", Results)
    seeds = evaluated_seeds(seeds, results)
    runs = {name: read_run(each) for name, each in seeds.items()}
    first = next(iter(runs.values()))
    rows = [("doctor", [(run.doctor or {}).get("status", "–") for run in runs.values()])]
    rows += [("seconds", [f"{_seconds(run.costs):.0f}" for run in runs.values()])]
    rows += [("report", [f"{each.name}/report.html" for each in seeds.values()])]
    return RunRecord(
        name=_name(folder),
        path=_path(folder),
        results=results,
        about=first.about,
        episodes=first.episodes,
        audit=part("audit.json", "the audit of the grader", AuditRecord),
        costs=part("costs.json", "the costs", Costs),
        recipe=_text(folder / "recipe.toml", "the recipe (recipe.toml)", missing),
        missing=[
            *missing,
            *(f"{name}, {each}" for name, run in runs.items() for each in run.missing if not each.endswith(NOT_STORED)),
        ],
        overlaid={name: run.grpo for name, run in runs.items()},
        overlaid_sft={name: run.sft for name, run in runs.items()},
        seeds={"names": list(runs), "rows": rows, "shown": first.path},
    )


def _seconds(costs: Json | None) -> float:
    return sum(each.get("seconds") or 0.0 for each in (costs or {}).get("stages") or ())


def read_part(path: Path, kind: Any, what: str, missing: list[str]) -> Json | None:
    """The document in a JSON file, or None and a sentence."""
    if not path.is_file():
        missing.append(f"{what}{NOT_STORED}")
        return None
    try:
        return dict(read_document(path, kind))
    except StorageError as error:
        missing.append(f"{what}: {error}")
        return None


def _text(path: Path, what: str, missing: list[str]) -> str | None:
    if not path.is_file():
        return None
    try:
        return read_text(path)
    except StorageError as error:
        missing.append(f"{what}: {error}")
        return None


def read_lines(path: Path, what: str, missing: list[str]) -> list[Json]:
    """The records of a metrics file; a file with a line that cannot be read, or an invalid figure, is left out and named."""
    if not path.is_file():
        missing.append(f"{what}{NOT_STORED}")
        return []
    try:
        return read_records(path)
    except StorageError as error:
        missing.append(f"{what}: {error}")
        return []
