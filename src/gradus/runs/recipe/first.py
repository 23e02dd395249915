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
from gradus.environments.verifiable import TableTasks
from gradus.environments.verifiable.checks import hides_choices, unshown_columns
from gradus.environments.verifiable.from_files import DataSource, quoted, read_rows
from gradus.environments.verifiable.rows import ANSWERS, gold_column, is_chat, plain
from gradus.policies.local.folders import find_model
from gradus.runs.recipe.starter import LABEL_PROMPT, are_labels, labels_of, starter, with_paths, with_room_for_rows

_QUESTIONS = ("question", "prompt", "instruction", "input", "messages", "problem", "query", "text")
_ANSWERS = (
    *ANSWERS,
    "label",
    "output",
    "response",
    "completion",
    "class",
    "category",
)  # the last of these a person should look at
_WORKED = ("worked", "solution", "explanation", "reasoning", "rationale", "steps", "cot")
_FEW_ROWS = 50

_COMMENTS = {
    "environment": "What to train on. Paths are relative to this file.",
    "model": "The model: a nano model made from the words of the data, or path = a folder or a name on the hub.",
    "audit": "Is the reward worth training on? Answers that are right, wrong or made to cheat, and a search for a hack.",
    "teach": "Whose answers SFT learns before GRPO; gold answers if there are no worked solutions.",
    "sft": "Supervised training on the teacher's answers.",
    "distill": "Training on the distributions that a teacher states.",
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
        if role == "answer" and (gold := gold_column(rows)):  # as every other command takes it
            free = [gold]
        if free:
            columns[role] = free[0]
    if "answer" not in columns and _is_answered_chat(rows[0].get(columns.get("question", ""))):
        columns["answer"] = columns["question"]
    for role in ("question", "answer"):
        if role not in columns:
            raise _unknown(role, names, columns.get("question", names[0]))
    return columns


def _unknown(role: str, names: Sequence[str], question: str) -> ConfigError:
    other = next((each for each in reversed(names) if each != question), "COLUMN")
    return ConfigError(
        f"none of the columns {', '.join(names)} is known as the {role}; name it, as in "
        f"rows.jsonl?question={quoted(question)}&answer={quoted(other)}; rewards that need no answer do without it, as in "
        "gradus run FILE --reward FILE.py:function"
    )


def _is_answered_chat(cell: Any) -> bool:
    cell = plain(cell)
    return is_chat(cell) and cell[-1].get("role") == "assistant"


def write_first_recipe(source: str, path: Path, *, model: str | None, overwrite: bool) -> list[str]:
    """Write a recipe for the environment ``source`` and return what a person should know. Raises ConfigError if ``path`` is there already."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give --overwrite, or another file with --out")
    kind, _, place = source.partition(":")
    name, said = _data(place, kind) if kind in ("jsonl", "csv") else (source, [])
    spec = environments.load(name)
    labels = labels_of(spec) if model is not None and "?" not in place else ()
    if labels:
        prompt = path.with_suffix(".prompt.txt")
        write_text(prompt, LABEL_PROMPT.format(labels=", ".join(labels)))
        name += f"{'&' if '?' in name else '?'}system={quoted(str(prompt))}"
        said.append(f"the labels stand in the system prompt: {prompt}")
    table = with_room_for_rows(starter(with_paths(name, lambda text: _from(path.parent, text)), spec, labels), spec)
    if model is not None:
        table["model"] = {"path": model if find_model(model) is None else _from(path.parent, model)}
    said += _missing(spec, model)
    write_text(path, _commented(table))
    return said


def _data(source: str, kind: str) -> tuple[str, list[str]]:
    """The environment of a file of rows, with its columns named, and what the rows look like."""
    place, _, query = source.partition("?")
    rows = read_rows(Path(place), kind)
    if query:
        return f"{kind}:{source}", []
    columns = find_columns(rows)
    without = sum(not row.get(columns["worked"]) for row in rows) if "worked" in columns else 0
    partly = columns.pop("worked") if without else None
    said = [f"{len(rows)} rows; " + ", ".join(f"{role}: column {name!r}" for role, name in columns.items())]
    if columns["question"] == columns["answer"]:
        said.append("the rows are chats; the last message of each is the answer, those before it are asked")
    elif is_chat(plain(rows[0][columns["question"]])):
        said.append("the questions are chat messages; the last message of each is asked")
    labels = {str(row.get(columns["answer"])) for row in rows}
    if are_labels(labels, len(rows)):
        said.append(
            f"{len(labels)} different answers: labels. A constant answer may score well; look at the audit's panel"
        )
    if len(rows) < _FEW_ROWS:
        said.append(
            f"missing: rows. {len(rows)} are too few to hold some out; {_FEW_ROWS} or more are needed for a result"
        )
    if "worked" not in columns and kind == "jsonl" and all("####" in str(row.get(columns["answer"])) for row in rows):
        said.append(f"the answers stand behind worked solutions and ####: gsm8k:{place} teaches the way to them")
    elif partly is not None:
        said.append(f"missing: column {partly!r} in {without} of the rows, so it is left out and gold answers teach")
    elif "worked" not in columns:
        said.append("missing: worked solutions. Gold answers teach; a column 'worked' would teach the way to them")
    given = {role: name for role, name in columns.items() if name != role or role == "worked"}
    return DataSource(kind=kind, place=place, **given).name, said


def _missing(spec: EnvironmentSpec, model: str | None) -> list[str]:
    rows = spec.data_set.splits["train"] if isinstance(spec.data_set, TableTasks) else []
    unshown = unshown_columns(rows) if rows else []
    wanted = {
        "a vocabulary (language=Language(vocabulary=...)), or a model: give --model": model is None
        and spec.language.vocabulary is None,
        "a teacher for the nano model. Name one in the environment, or set teach.policy = 'remote:MODEL'": model is None
        and spec.teacher is None,
        "a panel (audit=AuditHints(panel=...)). The audit tries random and constant answers instead": spec.audit.panel
        is None,
        "the choices. Answers name one of the row's choices, and the questions do not show them: write them in": any(
            map(hides_choices, rows)
        ),
        f"{', '.join(unshown)} in the questions. The model does not see these columns; write in what it needs": bool(
            unshown
        ),
        "a view (presentation=Presentation(view=...)). The report shows transcripts only": spec.presentation.view
        is None,
    }
    return [f"missing: {text}" for text, lacking in wanted.items() if lacking]


def _commented(table: Mapping[str, Any]) -> str:
    """TOML with a line of comment before each section."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    parts = [f"# {_COMMENTS['environment']}\n{tomli_w.dumps(plain)}"]
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append(f"# {_COMMENTS.get(key, '')}\n{tomli_w.dumps({key: dict(value)})}")
    return "\n".join(parts)


def _from(folder: Path, place: str) -> str:
    """A path from here as one from ``folder``; other texts stay as they are."""
    path = Path(place)
    return place if not place or path.is_absolute() or not path.exists() else os.path.relpath(path, folder)
