"""Tries reward functions on completions before anything is trained on them."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

from gradus.core import Episode, StorageError
from gradus.core.files import parse_json_lines, read_json_lines
from gradus.rewards.answers import read_answer
from gradus.rewards.catalog import BUILT_IN
from gradus.rewards.compose import Completion, Rewards, ScoredCompletion, completion_text
from gradus.rewards.grading import completion_of


@dataclass(frozen=True, kw_only=True)
class Tryout:
    """Scores of all completions, in order, and the errors on the way."""

    completions: Sequence[Completion]
    scored: Sequence[ScoredCompletion]
    errors: Mapping[str, int]

    @property
    def mean(self) -> float | None:
        """Mean value over the completions that have one."""
        values = [each.value for each in self.scored if each.value is not None]
        return fsum(values) / len(values) if values else None

    def component_means(self) -> dict[str, float | None]:
        """Mean unweighted value of each component over the completions that it applies to."""
        by_name: dict[str, list[float]] = {}
        for each in self.scored:
            for name, value in each.components.items():
                by_name.setdefault(name, []).extend([] if value is None else [value])
        return {name: fsum(values) / len(values) if values else None for name, values in by_name.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One JSON record a completion: the answer that was read, each component, the value, the error."""
        return [
            {
                "completion": completion.completion,
                "read": read_answer(completion.completion).text,
                "components": dict(scored.components),
                "value": scored.value,
                "error": scored.error,
            }
            for completion, scored in zip(self.completions, self.scored, strict=True)
        ]


def try_rewards(rewards: Rewards, completions: Sequence[Completion]) -> Tryout:
    """Scores completions and gathers the errors."""
    rewards.errors.clear()
    scored = rewards(completions)
    return Tryout(completions=completions, scored=scored, errors=dict(rewards.errors))


def read_completions(
    path: str | Path, *, decode: Callable[[Mapping[str, Any]], Episode] | None = None
) -> list[Completion]:
    """Reads completions from JSONL: ``{"prompt", "completion", ...columns}`` a line, or stored episodes if ``decode`` reads them.

    ``-`` is standard input. Raises StorageError that names the file and the line.
    """
    stdin = str(path) == "-"
    records = parse_json_lines(sys.stdin.read(), "standard input") if stdin else read_json_lines(Path(path))
    if records and "environment" in records[0] and "completion" not in records[0] and "turns" not in records[0]:
        del records[0]  # the header of an episode file
    if not records:
        raise StorageError(f"{path} holds no completions; expected one JSON object with a completion a line")
    return [
        _stored(record, f"completion {number} of {path}", decode)
        if record.get("turns") and decode
        else _completion(record, f"completion {number} of {path}")
        for number, record in enumerate(records, 1)
    ]


def _stored(record: Mapping[str, Any], where: str, decode: Callable[[Mapping[str, Any]], Episode]) -> Completion:
    try:
        completion = completion_of(decode(record))
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{where} cannot be read as an episode ({type(error).__name__}: {error})") from error
    return replace(completion, chat=any(map(_is_chat, completion.columns.values())))


def _completion(record: Mapping[str, Any], where: str) -> Completion:
    answered: Any = record.get("completion")
    asked: Any = record.get("prompt") or record.get("question") or ""
    text = completion_text(answered) if _is_chat(answered) else answered
    if not isinstance(text, str):
        raise StorageError(f"{where} has no text under 'completion'; it has {', '.join(record) or 'nothing'}")
    system = ""
    if chat := _is_chat(asked):
        system = next((str(each["content"]) for each in asked if each["role"] == "system"), "")
        asked = completion_text(asked)
    return Completion(
        prompt=asked,
        completion=text,
        system_prompt=record.get("system_prompt") or system,
        columns={key: cell for key, cell in record.items() if key not in ("prompt", "completion", "system_prompt")},
        chat=chat or _is_chat(answered),
    )


def _is_chat(cell: Any) -> bool:
    messages = cell if isinstance(cell, list) else []
    return bool(messages) and all(isinstance(each, Mapping) and {"role", "content"} <= each.keys() for each in messages)


def try_line(rewards: Rewards, completion: Completion) -> str:
    """The command line that scores one completion again; empty if a function has no name that a command line can give."""
    named = [_named(function, rewards.weights[name]) for name, function in rewards.functions.items()]
    row = {"prompt": completion.prompt, **completion.columns, "completion": completion.completion}
    try:
        said = json.dumps(row, ensure_ascii=False)
    except (TypeError, ValueError):  # a column that JSON cannot hold
        return ""
    options = " ".join(f"--reward {shlex.quote(each)}" for each in named)
    return f"echo {shlex.quote(said)} | gradus rewards try - {options}" if all(named) else ""


def _named(function: Callable[..., Any], weight: float) -> str:
    """A reward as ``--reward`` takes it: a built-in, or file.py:function; empty for one that is not found in a file under its name."""
    function, times = inspect.unwrap(function), "" if weight == 1.0 else f"={weight:g}"
    if (built_in := next((name for name, each in BUILT_IN.items() if each is function), None)) is not None:
        return f"{built_in}{times}"
    name, file = getattr(function, "__name__", ""), getattr(getattr(function, "__code__", None), "co_filename", "")
    if not name.isidentifier() or function.__qualname__ != name or not Path(file).is_file():
        return ""
    place = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    return f"{place}:{name}{times}"
