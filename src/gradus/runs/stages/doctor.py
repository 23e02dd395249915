"""The doctor over a run: its metrics and its evaluation, diagnosed, shown, stored."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gradus.core.documents import Diagnoses, Results, read_document
from gradus.core.files import write_json
from gradus.core.metrics import METRICS_FILES, metrics_files, read_metrics
from gradus.core.printing import go_around
from gradus.evidence.reports.results import differences
from gradus.evidence.reports.run_files import seed_folders
from gradus.evidence.stage_files import changed_since


def diagnose_run(folder: Path, *, console: Console) -> None:
    """The doctor as a stage of a run: writes doctor.json."""
    document = diagnosis_of(folder)
    write_json(folder / "doctor.json", document)
    for each in diagnoses_table(document):
        console.print(each, highlight=False)


def diagnosis_of(run: Path) -> Diagnoses:
    """Diagnoses the metrics of a run folder or file, and the run's evaluation, as `gradus doctor --json` prints it.

    Of a run of several training seeds: of the metrics of each, and of the evaluation over all.
    """
    from gradus.evidence.health import diagnose, report, worst_first

    seeds = {name: folder for name, folder in seed_folders(run).items() if metrics_files(folder)}
    for place in (run, *seeds.values()):
        for file in [place] if place.is_file() else [place / name for name in (*METRICS_FILES, "results.json")]:
            for problem in changed_since(file):
                go_around(problem, "the diagnosis is of what is there")
    if not seeds:
        records = [*read_metrics(run), *evaluation_records(run)]
        return report(diagnose(records), records)
    diagnoses = diagnose(evaluation_records(run))
    metrics = {name: read_metrics(folder) for name, folder in seeds.items()}
    for name, records in metrics.items():
        diagnoses += [replace(each, evidence=f"{name}, {each.evidence}") for each in diagnose(records)]
    return report(worst_first(diagnoses), min(metrics.values(), key=len))


def evaluation_records(run: Path) -> list[dict[str, Any]]:
    """Returns records for the rules: how the evaluation compares GRPO with the model before it."""
    path = run / "results.json"
    if not path.is_file():
        return []
    conditions = read_document(path, Results)["conditions"]
    records: list[dict[str, Any]] = []
    for condition in list(conditions)[:1]:
        stored = {(each.first, each.second): each for each in differences(conditions, condition)}
        for first, second in (
            ("grpo", "distill"),
            ("grpo-greedy", "distill-greedy"),
            ("grpo", "sft"),
            ("grpo-greedy", "sft-greedy"),
            ("grpo", "base"),
        ):
            turned = stored.get((second, first))
            pair = stored.get((first, second)) or (turned.reversed() if turned else None)
            if pair is not None:
                figures = {name: asdict(each) for name, each in pair.figures.items() if each is not None}
                records.append({"kind": "evaluation", "condition": condition, "pair": f"{first} - {second}", **figures})
    return records


def diagnoses_table(document: Diagnoses) -> list[Any]:
    """A table of the diagnoses, and the one line to act on."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("diagnosis", "severity", "evidence", "remedy"):
        table.add_column(column, overflow="fold")
    for each in document["diagnoses"]:
        table.add_row(*(Text(each[column]) for column in ("rule", "severity", "evidence", "remedy")))
    style = {"healthy": "green", "warn": "yellow", "stop": "red"}[document["status"]]
    line = Text.assemble((document["status"], f"bold {style}"), f"  {document['summary']}")
    return [table, line] if document["diagnoses"] else [line]
