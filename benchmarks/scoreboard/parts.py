"""The audit's scoreboard: planted flaws, and the graders of a public suite whose labels were frozen before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import gradus.auditing
from gradus.auditing.text.tasks import TextSubject, subject_of
from gradus.core import ConfigError, StorageError
from gradus.core.files import read_json, read_toml, write_text
from gradus.core.printing import beginning
from gradus.runs.progress import progress_bar
from gradus.stats import format_interval
from scoreboard.planted import plants
from scoreboard.score import Case, Row, board, judged

PARTS = ("planted", "reasoning-gym", "reasoning-gym-held-out")
_TASKS = 48
_NOTED = {  # classes that an audit may note instead of failing: being right earns more than what they pay for
    "spaces around it are wrong": "strict",
    **dict.fromkeys(
        (
            "first number anywhere",
            "last number anywhere",
            "one character is compared",
            "what is too much is ignored",
            "form earns more than content",
            "any option earns something",
        ),
        "lenient",
    ),
}
_EVIDENCE = 200  # characters of the evidence that the page shows


def run_scoreboard(part: str, *, seed: int = 0, folder: Path | None = None, only: Sequence[str] = ()) -> dict[str, Any]:
    """Audit every grader of a part. ``folder``: keeps rows; what is there and was made by the same code is not made again.

    ``only``: names of graders, all if empty.
    """
    cases = [case for case in _cases(part, seed) if not only or case.name in only]  # planted ones are cheap to make
    rows: list[Row] = []
    with progress_bar(f"scoreboard {part}", len(cases), "graders") as advance:
        for number, case in enumerate(cases, 1):
            rows.append(_kept(case, seed, None if folder is None else folder / f"{part}-{seed}"))
            advance(number, len(cases), case.name)
    return {"part": part, "seed": seed, **board(rows), "rows": [asdict(row) for row in rows]}


def _cases(part: str, seed: int) -> Iterator[Case]:
    if part == "planted":
        for plant in plants(seed):
            label = "flawed" if plant.flaw else "sound"
            yield Case(
                name=plant.name,
                label=label,
                kind=plant.flaw or "",
                subject=lambda plant=plant: plant.subject,
                noted=_NOTED.get(plant.flaw or "", ""),
            )
        return
    if part not in PARTS:
        raise ConfigError(f"the scoreboard has the parts {', '.join(PARTS)}; got {part!r}")
    for name, row in read_toml(Path(__file__).parent / "reasoning_gym.toml").items():
        if bool(row.get("held_out")) == (part == "reasoning-gym-held-out"):
            subject = partial(_data_set, name)
            kind = row.get("reason", "")
            disputed = row.get("disputed", "")
            yield Case(name=name, label=row["label"], kind=kind, subject=subject, disputed=disputed)


def _data_set(name: str) -> TextSubject:
    from gradus.environments import load

    try:
        spec = load(f"reasoning-gym:{name}")
    except ConfigError:  # it makes no tasks within its limits
        subject = None
    else:
        subject = subject_of(spec, spec.grader(), tasks=_TASKS)
    return subject or TextSubject(name=name, grader="score", tasks=[], judge=lambda task, answer: None)


def _kept(case: Case, seed: int, folder: Path | None) -> Row:
    if folder is None:
        return judged(case, seed=seed)
    stem = blake2b(case.name.encode(), digest_size=8).hexdigest()
    row_file = folder / f"{stem}-{_code()}.json"
    try:
        if row_file.is_file():
            return Row(**read_json(row_file))
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"{folder} holds other results than a scoreboard's ({error}); choose another --out"
        ) from error
    row = judged(case, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(row_file, json.dumps(asdict(row)))
    return row


def _code() -> str:
    """A digest of the audit's source and of the planted graders: rows that other code made are made again."""
    folders = (Path(gradus.auditing.__file__).parent, Path(__file__).parent)
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return blake2b(b"".join(file.read_bytes() for file in files), digest_size=6).hexdigest()


def scoreboard_page(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a page in Markdown."""
    columns = "part | seed | flawed | detection | sound | false alarms | seconds: median, most"
    lines = ["# Results: the audit, measured by flaws", "", f"| {columns} |", "|---|---|---|---|---|---|---|"]
    for each in results:
        rates = [cell for key in ("detection", "false_alarms") for cell in (each[key]["n"], shown_share(each[key]))]
        seconds = each["seconds"]
        cells = (each["part"], each["seed"], *rates, f"{seconds['median']}, {seconds['most']}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for each in results:
        lines += ["", f"## {each['part']}", "", *_named(each)]
    return "\n".join(lines).rstrip() + "\n"


def _named(result: Mapping[str, Any]) -> list[str]:
    """Classes, misses and false alarms of a part by name."""
    lines: list[str] = []
    if result["part"] == "planted":
        lines += ["| class | found |", "|---|---|"]
        lines += [f"| {kind} | {shown_share(share)} of {share['n']} |" for kind, share in result["by_class"].items()]
        lines.append("")
    for title, rows in (("Missed", result["misses"]), ("Flagged though sound", result["alarms"])):
        lines += [f"{title}:", "", *map(_told, rows), ""] if rows else [f"{title}: none.", ""]
    if result["unresolved"]:
        lines += [f"Unresolved: {', '.join(result['unresolved'])}.", ""]
    if result["partial"]:
        told = ", ".join(f"{row['name']} {row['verdict']}" for row in result["partial"])
        lines += [f"Partly flawed, counted as neither: {told}.", ""]
    return lines


def _told(row: Mapping[str, Any]) -> str:
    name, said = row["name"], row["kind"] or row["label"]
    parts = [f"- {name if name.endswith(said) else f'{name} ({said})'}: {row['verdict']}."]
    if row["evidence"]:
        parts.append(beginning(row["evidence"], _EVIDENCE))
    if row["disputed"]:
        parts.append(f"Disputed: {row['disputed']}.")
    return " ".join(parts)


def shown_share(share: Mapping[str, Any]) -> str:
    """A share with its interval."""
    return format_interval({"mean": share["share"], "low": share["low"], "high": share["high"]})
