"""Reading what a run stored. What is missing or broken becomes a sentence, never an error: a report says what it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.core import StorageError
from gradus.core.documents import AuditRecord, Costs, Description, Diagnoses, Results, read_document
from gradus.core.files import read_json_lines, read_text

__all__ = ["RunRecord", "read_lines", "read_part", "read_run"]

Json = dict[str, Any]


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
    overlaid: Mapping[str, Sequence[Json]] = field(
        default_factory=dict
    )  # run -> its GRPO metrics, if runs are compared
    settings: Json | None = None  # names of the compared runs, and rows of settings that differ

    @property
    def promises(self) -> Sequence[Json]:
        """What the recipe promised, as the pipeline judged it from the results."""
        return (self.results or {}).get("promises") or ()


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; see docs/report.md for its files."""
    missing: list[str] = []

    def part(path: str, what: str, kind: Any = Json) -> Json | None:
        return read_part(folder / path, kind, f"{what} ({path})", missing)

    def lines(path: str, what: str) -> list[Json]:
        return read_lines(folder / path, f"{what} ({path})", missing)

    recipe = folder / "recipe.toml"
    return RunRecord(
        name=folder.name,
        results=part("results.json", "the evaluation", Results),
        about=part("report/about.json", "the environment's description", Description),
        episodes=part("report/episodes.json", "the episodes to browse"),
        audit=part("audit.json", "the audit of the grader", AuditRecord),
        doctor=part("doctor.json", "the doctor's diagnoses", Diagnoses),
        costs=part("costs.json", "the costs", Costs),
        recipe=_text(recipe, "the recipe (recipe.toml)", missing),
        sft=lines("sft/metrics.jsonl", "the curves of supervised SFT"),
        grpo=lines("grpo/metrics.jsonl", "the curves of GRPO"),
        missing=missing,
    )


def read_part(path: Path, kind: Any, what: str, missing: list[str]) -> Json | None:
    """The document in a JSON file, or None and a sentence."""
    if not path.is_file():
        missing.append(f"{what}: not stored")
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
    """The objects of a JSON-lines file; lines that cannot be read are left out and counted."""
    if not path.is_file():
        missing.append(f"{what}: not stored")
        return []
    try:
        lines = read_json_lines(path)
    except StorageError as error:
        missing.append(f"{what}: {error}")
        return []
    if broken := len(lines.problems) + lines.cut:
        missing.append(f"{what}: {broken} lines could not be read and were left out")
    return lines.records
