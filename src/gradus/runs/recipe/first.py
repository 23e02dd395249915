"""`gradus init`: write a commented recipe for rows or an environment, and say what is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import write_text
from gradus.environments.verifiable.from_files import quoted
from gradus.policies.local.folders import find_model
from gradus.runs.recipe.starter import LABEL_PROMPT, labels_of, starter, with_paths, with_room_for_rows

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


def write_first_recipe(source: str, path: Path, *, model: str | None, overwrite: bool) -> list[str]:
    """Write a recipe for the environment ``source`` and return what a person should know. Raises ConfigError if ``path`` is there already."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give --overwrite, or another file with --out")
    spec, name = environments.load(source), source
    said: list[str] = []
    labels = labels_of(spec) if model is not None and "system=" not in source else []
    if labels:
        prompt = path.with_suffix(".prompt.txt")
        write_text(prompt, LABEL_PROMPT.format(labels=", ".join(labels)))
        name += f"{'&' if '?' in name else '?'}system={quoted(str(prompt))}"
        said.append(f"the labels stand in the system prompt: {prompt}")
    table = with_room_for_rows(starter(with_paths(name, lambda text: _from(path.parent, text)), spec, labels), spec)
    if model is not None:
        table["model"] = {"path": model if find_model(model) is None else _from(path.parent, model)}
    write_text(path, _commented(table))
    return said + _missing(spec, model)


def _missing(spec: EnvironmentSpec, model: str | None) -> list[str]:
    wanted = {
        "a vocabulary (language=Language(vocabulary=...)), or a model: give --model": model is None
        and spec.language.vocabulary is None,
        "a teacher for the nano model. Name one in the environment, or set teach.policy = 'remote:MODEL'": model is None
        and spec.teacher is None,
        "a panel (audit=AuditHints(panel=...)). The audit tries random and constant answers instead": spec.audit.panel
        is None,
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
