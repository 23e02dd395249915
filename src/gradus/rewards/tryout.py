"""Tries reward functions on completions before anything is trained on them."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any, cast

from gradus.core import Episode, StorageError
from gradus.core.files import parse_json_lines, read_json_lines
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict, as_mapping
from gradus.rewards.answers import read_answer
from gradus.rewards.catalog import built_in_name
from gradus.rewards.compose import Columns, Completion, Rewards, ScoredCompletion, completion_text
from gradus.rewards.grading import completion_of


@frozen_record
class Tryout:
    """Scores of all completions, in order, and the errors on the way."""

    completions: Sequence[Completion]
    scored: Sequence[ScoredCompletion]
    errors: Mapping[str, int]

    @property
    def mean(self) -> float | None:
        """Mean value over the completions that have one."""
        return _mean(scored.value for scored in self.scored)

    def component_means(self) -> dict[str, float | None]:
        """Mean unweighted value of each component over the completions that it applies to."""
        by_name: dict[str, list[float | None]] = {}
        for scored in self.scored:
            for name, value in scored.components.items():
                by_name.setdefault(name, []).append(value)
        return {name: _mean(values) for name, values in by_name.items()}

    def rows(self) -> list[JsonDict]:
        """One JSON record a completion: the answer that was read, each component, the value, the error."""
        rows: list[JsonDict] = []
        for completion, scored in zip(self.completions, self.scored, strict=True):
            rows.append(
                {
                    "completion": completion.completion,
                    "read": read_answer(completion.completion).text,
                    "components": dict(scored.components),
                    "value": scored.value,
                    "error": scored.error,
                }
            )
        return rows


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are defined; gradus.stats has it too, and takes a second to import."""
    defined = [value for value in values if value is not None]
    return fsum(defined) / len(defined) if defined else None


def try_rewards(rewards: Rewards, completions: Sequence[Completion]) -> Tryout:
    """Scores completions and gathers the errors."""
    rewards.errors.clear()
    scored = rewards(completions)
    return Tryout(completions=completions, scored=scored, errors=dict(rewards.errors))


def read_completions(path: str | Path, *, decode: Callable[[Columns], Episode] | None = None) -> list[Completion]:
    """Reads completions from JSONL: ``{"prompt", "completion", ...columns}`` a line, or stored episodes if ``decode`` reads them.

    ``-`` is standard input. Raises StorageError that names the file and the line.
    """
    if str(path) == "-":
        records = parse_json_lines(sys.stdin.read(), "standard input")
    else:
        records = read_json_lines(Path(path))
    if records and "environment" in records[0] and not {"completion", "turns"} & records[0].keys():
        del records[0]  # the header of an episode file
    if not records:
        raise StorageError(f"{path} holds no completions; expected one JSON object with a completion a line")
    completions: list[Completion] = []
    for number, record in enumerate(records, start=1):
        place = f"completion {number} of {path}"
        if decode is not None and record.get("turns"):
            completions.append(_stored(record, place, decode))
        else:
            completions.append(_completion(record, place))
    return completions


def _stored(record: Columns, place: str, decode: Callable[[Columns], Episode]) -> Completion:
    """Reads a stored episode."""
    try:
        completion = completion_of(decode(record))
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{place} cannot be read as an episode ({type(error).__name__}: {error})") from error
    chat = any(map(_is_chat, completion.columns.values()))
    return replace(completion, chat=chat)


def _completion(record: Columns, place: str) -> Completion:
    """Reads a row with a completion; prompt and completion may be texts or messages."""
    completion: Any = record.get("completion")
    prompt: Any = record.get("prompt") or record.get("question") or ""
    system = record.get("system_prompt") or ""
    chat = _is_chat(prompt) or _is_chat(completion)
    if _is_chat(completion):
        completion = completion_text(completion)
    if not isinstance(completion, str):
        raise StorageError(f"{place} has no text under 'completion'; it has {', '.join(record) or 'nothing'}")
    if _is_chat(prompt):
        contents = [str(message["content"]) for message in prompt if message["role"] == "system"]
        system = system or next(iter(contents), "")
        prompt = completion_text(prompt)
    # A question stays a column as well: it is a name of the data, and functions may take it.
    columns = {name: cell for name, cell in record.items() if name not in ("prompt", "completion", "system_prompt")}
    return Completion(prompt=prompt, completion=completion, system_prompt=system, columns=columns, chat=chat)


def _is_chat(cell: Any) -> bool:
    messages = cast(list[Any], cell) if isinstance(cell, list) else []
    return bool(messages) and all(map(_is_message, messages))


def _is_message(value: Any) -> bool:
    return {"role", "content"} <= as_mapping(value).keys()


def try_line(rewards: Rewards, completion: Completion) -> str:
    """The command line that scores one completion again; empty if a function has no name that a command line can give."""
    names = [_name(function) for function in rewards.functions.values()]
    if not all(names):
        return ""
    row = {"prompt": completion.prompt, **completion.columns, "completion": completion.completion}
    try:
        line = json.dumps(row, ensure_ascii=False)
    except (TypeError, ValueError):  # a column that JSON cannot hold
        return ""
    options: list[str] = []
    for name, weight in zip(names, rewards.weights.values(), strict=True):
        entry = name if weight == 1.0 else f"{name}={weight:g}"
        options.append(f"--reward {shlex.quote(entry)}")
    return f"echo {shlex.quote(line)} | gradus rewards try - {' '.join(options)}"


def _name(function: Callable[..., Any]) -> str:
    """A reward as ``--reward`` takes it: a built-in, or file.py:function; empty for one that is not defined in a file under its name."""
    function = inspect.unwrap(function)
    name = built_in_name(function)
    if name:
        return name
    name = getattr(function, "__name__", "")
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    # The command line imports the file and takes the name from it, so a lambda or an inner function has none.
    is_in_file = name.isidentifier() and getattr(function, "__qualname__", "") == name and Path(file).is_file()
    if not is_in_file:
        return ""
    path = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    return f"{path}:{name}"
