"""`gradus init`: look at columns or at an environment, write a commented recipe, and say what is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import write_text
from gradus.environments.verifiable.datasets import read_rows
from gradus.pipeline.starter import starter
from gradus.policies.local.folders import find_model

_QUESTIONS = ("question", "prompt", "instruction", "input", "messages", "problem", "query", "text")
_ANSWERS = ("answer", "label", "target", "output", "response", "completion", "solution", "gold", "class", "category")
_WORKED = ("worked", "solution", "explanation", "reasoning", "rationale", "steps", "cot")
_FEW_ROWS, _FEW_LABELS = 50, 20

_COMMENTS = {
    "environment": "What to train on. Paths are relative to this file.",
    "model": "The model: a nano model made from the words of the data, or path = a folder or a name on the hub.",
    "audit": "Is the reward worth training on? Answers that are right, wrong or made to cheat, and a search for a hack.",
    "teach": "Whose answers SFT learns before GRPO; gold answers if there are no worked solutions.",
    "sft": "Supervised training on the teacher's answers.",
    "grpo": "Training on the reward. A step is groups x group_size answers.",
    "eval": "Who is compared at the end, on the same questions.",
    "lm": "What takes the place of this for a language model: rates and adapters follow from its size.",
    "quick": "What gradus run --quick changes.",
}


def find_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """``question``, ``answer`` and perhaps ``worked`` -> the column, by its usual names. Raises ConfigError if nothing asks or answers."""
    names = [str(name) for name in rows[0]]
    lower = {name.lower(): name for name in reversed(names)}
    columns: dict[str, str] = {}
    for role, usual in (("question", _QUESTIONS), ("answer", _ANSWERS), ("worked", _WORKED)):
        free = [lower[name] for name in usual if name in lower and lower[name] not in columns.values()]
        if free:
            columns[role] = free[0]
    for role in ("question", "answer"):
        if role not in columns:
            raise ConfigError(
                f"none of the columns {', '.join(names)} is known as the {role}; name it, as in "
                f"rows.jsonl?question={names[0]}&answer={names[-1]}"
            )
    return columns


def write_first_recipe(source: str, path: Path, *, model: str | None, overwrite: bool) -> list[str]:
    """Write a recipe for ``source`` and return what a person should know. Raises ConfigError if ``path`` is there already."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give --overwrite, or another file with --out")
    kind = {".jsonl": "jsonl", ".csv": "csv"}.get(Path(source.partition("?")[0]).suffix.lower())
    name, said = _data(source, kind, path.parent) if kind else (source, [])
    spec = environments.load(_from_here(name, path.parent))
    table = starter(name if kind else _beside(name, path.parent), spec)
    if model is not None:
        table["model"] = {"path": model if find_model(model) is None else _relative(model, path.parent)}
    said += _missing(spec, model)
    write_text(path, _commented(table))
    return said


def _data(source: str, kind: str, folder: Path) -> tuple[str, list[str]]:
    """The environment of a file of rows, with its columns named, and what the rows look like."""
    place, _, query = source.partition("?")
    rows = read_rows(Path(place), kind)
    if query:
        return f"{kind}:{_relative(place, folder)}?{query}", []
    columns = find_columns(rows)
    said = [f"{len(rows)} rows; " + ", ".join(f"{role}: column {name!r}" for role, name in columns.items())]
    if isinstance(rows[0][columns["question"]], list):
        said.append("the questions are chat messages; the last message of each is asked")
    labels = {str(row.get(columns["answer"])) for row in rows}
    if len(labels) <= _FEW_LABELS and len(rows) > 2 * len(labels):
        said.append(
            f"{len(labels)} different answers: labels. A constant answer may score well; look at the audit's panel"
        )
    if len(rows) < _FEW_ROWS:
        said.append(
            f"missing: rows. {len(rows)} are too few to hold some out; {_FEW_ROWS} or more are needed for a result"
        )
    if "worked" not in columns:
        said.append("missing: worked solutions. Gold answers teach; a column 'worked' would teach the way to them")
    options = "&".join(f"{role}={name}" for role, name in columns.items() if role != name)
    return f"{kind}:{_relative(place, folder)}" + (f"?{options}" if options else ""), said


def _missing(spec: EnvironmentSpec, model: str | None) -> list[str]:
    said: list[str] = []
    if model is None and spec.language.vocabulary is None:
        said.append("missing: a vocabulary (language=Language(vocabulary=...)), or a model: give --model")
    if model is None and spec.teacher is None:
        said.append(
            "missing: a teacher for the nano model. Name one in the environment, or set teach.policy = 'remote:MODEL'"
        )
    if spec.audit.panel is None:
        said.append(
            "missing: a panel (audit=AuditHints(panel=...)). The audit tries random and constant answers instead"
        )
    if spec.presentation.view is None:
        said.append("missing: a view (presentation=Presentation(view=...)). The report shows transcripts only")
    return said


def _commented(table: Mapping[str, Any]) -> str:
    """TOML with a line of comment before each section."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    parts = [f"# {_COMMENTS['environment']}\n{tomli_w.dumps(plain)}"]
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append(f"# {_COMMENTS.get(key, '')}\n{tomli_w.dumps({key: dict(value)})}")
    return "\n".join(parts)


def _relative(place: str, folder: Path) -> str:
    return place if Path(place).is_absolute() else os.path.relpath(place, folder)


def _beside(name: str, folder: Path) -> str:
    """``FILE.py`` or ``FILE.py:NAME`` with the file relative to the recipe."""
    if name.endswith(".py"):
        return _relative(name, folder)
    file, separator, attribute = name.rpartition(":")
    return f"{_relative(file, folder)}:{attribute}" if separator and file.endswith(".py") else name


def _from_here(name: str, folder: Path) -> str:
    """The name of a data set relative to the recipe, as it is loaded from here."""
    kind, _, place = name.partition(":")
    if kind not in ("jsonl", "csv") or Path(place).is_absolute():
        return name
    return f"{kind}:{folder / place}"
