"""`gradus doctor`, whole: find the metrics, diagnose, show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from gradus.core import StorageError
from gradus.core.files import write_json

__all__ = ["diagnose_run", "doctor_command"]

_PLACES = ("metrics.jsonl", "grpo/metrics.jsonl", "sft/metrics.jsonl")


def doctor_command(run: Path, *, as_json: bool = False) -> int:
    """Diagnose a run folder or a metrics file, show it, and return the exit code."""
    from gradus.health import diagnose, exit_code, report

    document = report(diagnose(read_metrics(run)))
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        show_diagnoses(document, Console())
    return exit_code(document["status"])


def diagnose_run(folder: Path, *, console: Console) -> None:
    """The doctor as a stage of a run: writes doctor.json."""
    from gradus.health import diagnose, report

    document = report(diagnose(read_metrics(folder)))
    write_json(folder / "doctor.json", document)
    show_diagnoses(document, console)


def read_metrics(run: Path) -> list[Mapping[str, Any]]:
    """The metrics of a run folder (GRPO's, or SFT's if there is no GRPO yet) or of a file; a torn last line is left out."""
    places = [run] if run.is_file() else [run / place for place in _PLACES]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise StorageError(
            f"no metrics in {run}; expected {' or '.join(_PLACES)}, which `gradus run` and `gradus grpo` write"
        )
    records: list[Mapping[str, Any]] = []
    lines = found.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise StorageError(f"{found} line {number} is not JSON: {error}") from error
    return records


def show_diagnoses(document: Mapping[str, Any], console: Console) -> None:
    """A table of the diagnoses, and the one line to act on."""
    from rich.table import Table

    diagnoses: Sequence[Mapping[str, Any]] = document["diagnoses"]
    if diagnoses:
        table = Table(box=None, pad_edge=False)
        for column in ("diagnosis", "severity", "evidence", "remedy"):
            table.add_column(column, overflow="fold")
        for each in diagnoses:
            table.add_row(each["rule"], each["severity"], each["evidence"], each["remedy"])
        console.print(table)
    style = {"healthy": "green", "warn": "yellow", "stop": "red"}[document["status"]]
    console.print(f"[bold {style}]{document['status']}[/]  {document['summary']}", highlight=False)
