"""The doctor over a run: its metrics and its evaluation, diagnosed, shown, stored."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.core.documents import Diagnoses, Results, read_document
from gradus.core.files import read_toml, write_json
from gradus.core.metrics import METRICS_FILES, metrics_files, read_metrics
from gradus.core.printing import go_around
from gradus.core.values import Json, JsonDict
from gradus.evidence.reports.results import headline_condition, main_scores
from gradus.evidence.reports.run_files import seed_folders
from gradus.evidence.stage_files import changed_since

if TYPE_CHECKING:  # a context brings torch, which a reader of a run does not need
    from gradus.runs.stages.context import RunContext

# Pairs of GRPO's student and the model before it.
_BEFORE = (
    ("grpo", "distill"),
    ("grpo-greedy", "distill-greedy"),
    ("grpo", "sft"),
    ("grpo-greedy", "sft-greedy"),
    ("grpo", "base"),
)


def do_doctor(run: RunContext, cost: JsonDict) -> None:
    """The doctor as a stage of a run: writes doctor.json."""
    document = diagnosis_of(run.folder)
    write_json(run.folder / "doctor.json", document)
    for part in diagnoses_table(document):
        run.console.print(part, highlight=False)


def diagnosis_of(run: Path) -> Diagnoses:
    """Diagnoses the metrics of a run folder or file, and the run's evaluation, as `gradus doctor --json` prints it.

    Of a run of several training seeds: of the metrics of each, and of the evaluation over all.
    """
    from gradus.evidence.health import diagnose, report, worst_first
    from gradus.evidence.health.foreign_logs import foreign_records, unmeasured

    foreign = foreign_records(run)
    if foreign is not None:
        source, records = foreign
        document = report(diagnose(records), records)
        return {**document, "source": source.name, "not_measured": unmeasured(records)}
    seeds = {name: folder for name, folder in seed_folders(run).items() if metrics_files(folder)}
    for place in (run, *seeds.values()):
        files = [place] if place.is_file() else [place / name for name in (*METRICS_FILES, "results.json")]
        for file in files:
            for problem in changed_since(file):
                go_around(problem, "the diagnosis is of what is there")
    if not seeds:
        records = [*read_metrics(run), *evaluation_records(run)]
        return report(diagnose(records), records)
    diagnoses = diagnose(evaluation_records(run))
    metrics = {name: read_metrics(folder) for name, folder in seeds.items()}
    for name, records in metrics.items():
        diagnoses += [replace(diagnosis, evidence=f"{name}, {diagnosis.evidence}") for diagnosis in diagnose(records)]
    # The shortest training says how far all seeds have come.
    return report(worst_first(diagnoses), min(metrics.values(), key=len))


def evaluation_records(run: Path) -> list[JsonDict]:
    """Returns records for the rules: how the evaluation compares GRPO with the model before it, and with its teacher."""
    path = run / "results.json"
    results = read_document(path, Results) if path.is_file() else None
    condition = headline_condition(results) if results else None
    if results is None or condition is None or results.get("quick"):  # at toy size no figure means anything
        return []
    scores = main_scores(results)[condition]
    head = {"kind": "evaluation", "condition": condition}
    pairs = {(pair.first, pair.second): pair.figures for pair in scores.pairs}
    records: list[JsonDict] = []
    for names in _BEFORE:
        if names in pairs:
            changes = {name: asdict(change) for name, change in pairs[names].items()}
            records.append({**head, "pair": " - ".join(names), **changes})
    recipe = read_toml(run / "recipe.toml") if (run / "recipe.toml").is_file() else {}
    teach: Json = recipe.get("teach", {})
    means = {name: figures["reward"].mean for name, figures in scores.policies.items() if "reward" in figures}
    teacher = str(teach.get("policy"))
    if {"grpo", teacher} <= means.keys() and teach.get("enabled") is not False:
        # Of the means: a pair with the teacher need not be among those that the recipe compares.
        change = means["grpo"] - means[teacher]
        span = means[teacher] - min(means.values())  # what the teacher earns above the worst policy
        pair = {"pair": f"grpo - {teacher}", "of": "teacher", "reward": {"mean": change}, "span": span}
        records.append(head | pair)
    return records


def diagnoses_table(document: Diagnoses) -> list[Any]:
    """A table of the diagnoses, and the one line to act on."""
    from rich.table import Table
    from rich.text import Text

    from gradus.evidence.health import status_words

    table = Table("diagnosis", "severity", "evidence", "remedy", box=None, pad_edge=False)
    for diagnosis in document["diagnoses"]:
        table.add_row(*(Text(diagnosis[key]) for key in ("rule", "severity", "evidence", "remedy")))
    style = {"healthy": "green", "warn": "yellow", "stop": "red"}[document["status"]]
    line = Text.assemble((status_words(document), f"bold {style}"), f"  {document['summary']}")
    parts: list[Any] = [table] if document["diagnoses"] else []
    # Logs of other trainers lack figures, and a rule that cannot look is no clean bill.
    missing = [f"{rule} needs {', '.join(names)}" for rule, names in document.get("not_measured", {}).items()]
    if missing:
        parts.append(Text(f"not measured in {document.get('source')}'s log: {'; '.join(missing)}"))
    return [*parts, line]
