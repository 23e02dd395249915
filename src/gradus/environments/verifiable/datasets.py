"""Reading a data set of questions and answers: GSM8K, JSONL or CSV, from a path or the Hugging Face hub.

An argument is a path with options behind a question mark, as in a web address:

    jsonl:train.jsonl?question=prompt&answer=target&worked=solution&test=test.jsonl&system=prompt.txt

``question`` (otherwise the column question, or prompt), ``answer`` and ``worked`` (otherwise the column worked, if all rows have it) name columns; ``test`` a second file that is held out; ``system`` a file with the
system prompt. If no row has a column ``answer``, one that all rows have and that is called ``solution``, ``target`` or another usual name is taken,
which is said; ``answer=`` takes none. Rows without gold answers need rewards of one's own. Without ``test`` a tenth of the rows is held out, chosen by their text, so that added rows move no other.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from gradus.core import ConfigError, StorageError
from gradus.core.files import read_json_lines, read_text
from gradus.environments.verifiable.columns import gold_column, tell_column
from gradus.environments.verifiable.items import (
    SYSTEM_PROMPT,
    Item,
    TableTasks,
    cell_text,
    is_chat,
    named_rows,
    plain,
    prompt_of,
    read_gold,
    row_item,
    share_of,
)
from gradus.environments.verifiable.telling import told

_KINDS = ("gsm8k", "jsonl", "csv")
_OPTIONS = ("question", "answer", "worked", "test", "system")
_QUOTED = str.maketrans({each: quote(each) for each in "%&+= "})
_TENTH = 0.1
_DELIMITERS = ",;\t|"  # spreadsheets of many countries write semicolons; the first one if nothing tells them apart
_LOOKED_AT = 50  # rows
_SETTLED = 2_000_000_000  # nanoseconds after which a change has another time, whatever the file system counts
_LONGEST_CELL = 2**31 - 1  # characters; Python's own limit is 131,072


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A data set as named on a command line. ``kind`` is gsm8k, jsonl or csv; ``place`` a path or a hub name."""

    kind: str
    place: str
    question: str = "question"
    answer: str = "answer"
    worked: str | None = None
    test: str | None = None
    system: str | None = None

    @property
    def name(self) -> str:
        """The name that gives this source again."""
        defaults = DataSource(kind=self.kind, place=self.place)
        given = {key: getattr(self, key) for key in _OPTIONS if getattr(self, key) != getattr(defaults, key)}
        return f"{self.kind}:{self.place}" + (
            "?" + "&".join(f"{key}={quoted(given[key])}" for key in given) if given else ""
        )


def quoted(value: str) -> str:
    """The value of an option as it is written: what would be read as something else is quoted as in a web address."""
    return value.translate(_QUOTED)


def takes_test(name: str) -> bool:
    """Whether an environment of this name takes a second file that is held out."""
    return name.partition(":")[0] in _KINDS


def parse_source(kind: str, argument: str | None) -> DataSource:
    """The source that ``argument`` means. Raises ConfigError for options that do not exist."""
    if not argument:
        hub = ", or a hub name, as in gsm8k:openai/gsm8k, which downloads it" if kind == "gsm8k" else ""
        raise ConfigError(f"{kind} needs a path, as in {kind}:PATH{hub}")
    place, _, query = argument.partition("?")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(
            f"{kind}:{argument} should have options such as ?question=COLUMN&answer=COLUMN; {error}"
        ) from error
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r} in {kind}:{argument}; known are {', '.join(_OPTIONS)}")
    return DataSource(kind=kind, place=place, **options)


def read_tasks(source: DataSource) -> TableTasks:
    """All rows, in splits. ``harder`` is the quarter of the held-out rows with the longest questions.

    The stages of a run ask for the same rows: they are read again only if a file changed. Raises ConfigError for a missing file
    or column, StorageError for a line that cannot be read.
    """
    files = _files(source)
    if any(time.time_ns() - changed < _SETTLED for _, changed, _ in files):
        return _read.__wrapped__(source, files)  # another change could leave the same time
    return _read(source, files)


def _files(source: DataSource) -> tuple[tuple[Path, int, int], ...]:
    """The files of a source: where they are, when they changed, how long they are."""
    place = Path(source.place).expanduser()
    others = [Path(each).expanduser() for each in (source.test, source.system) if each]
    paths = [path.resolve() for path in (place, place / "train.jsonl", place / "test.jsonl", *others) if path.exists()]
    return tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)


@lru_cache(maxsize=1)
def _read(source: DataSource, files: tuple[tuple[Path, int, int], ...]) -> TableTasks:
    """What is in a source whose ``files`` are these."""
    train, test = _rows(source)
    name = source.name
    if train and "question" not in train[0] and "prompt" in train[0] and source.question == "question":
        source = replace(source, question="prompt")  # as TRL calls it
    if source.answer == "answer":
        source = replace(source, answer=gold_column((*train, *(test or ()))) or "")  # reward functions may need none
        tell_column(source.place, source.answer or "answer", "?answer=COLUMN names another one, ?answer= none")
    items = [_item(source, row, number) for number, row in enumerate(told(train, f"rows of {source.place} read"), 1)]
    held_out = None if test is None else [_item(source, row, number) for number, row in enumerate(test, 1)]
    if answered := any(item.answer for item in (*items, *(held_out or ()))):
        _check_answers(source.place, items)
        _check_answers(source.test or f"the held-out file of {source.place}", held_out or ())
    return split_items(name, items, held_out, system_prompt=_system_prompt(source, answered))


def split_items(
    name: str, items: Sequence[Item], held_out: Sequence[Item] | None = None, *, system_prompt: str
) -> TableTasks:
    """Items in splits: a tenth is held out unless ``held_out`` is given, a tenth of the rest is only seen in evaluation."""
    items, held_out = _with_all_columns(items, held_out)
    if held_out is None:
        held_out, items = _tenth(items, "")
    seen, kept = _tenth(items, "seen ")
    if not kept or not held_out:
        second = ", or gradus.one_turn(rows, test=...)"
        if ":" in name:
            second = f", or a second file, as in {name.partition('?')[0]}?test=FILE" if takes_test(name) else ""
        raise ConfigError(
            f"{name} has {len(kept)} rows to train on and {len(held_out)} held out, by what they ask; expected some of both, "
            f"give more questions{second}"
        )
    splits = {"train": kept, "in-distribution": seen or held_out, "held-out": held_out, "harder": _longest(held_out)}
    return TableTasks(name, splits, system_prompt=system_prompt)


def _with_all_columns(
    items: Sequence[Item], held_out: Sequence[Item] | None
) -> tuple[Sequence[Item], Sequence[Item] | None]:
    """The items with None where a row leaves out a column that another has: reward functions get every column by name."""
    several = [*items, *(held_out or ())]
    names = dict.fromkeys(name for item in several for name in item.columns)
    if all(len(item.columns) == len(names) for item in several):
        return items, held_out

    def filled(rows: Sequence[Item]) -> list[Item]:
        return [replace(item, columns={**dict.fromkeys(names), **item.columns}) for item in rows]

    return filled(items), None if held_out is None else filled(held_out)


def _tenth(items: Sequence[Item], key: str) -> tuple[list[Item], list[Item]]:
    """About a tenth of the items, and the rest."""
    parts: tuple[list[Item], list[Item]] = [], []
    for item in told(items, "rows told apart by what they ask"):
        parts[share_of(key + item.question) >= _TENTH].append(item)
    return parts


def _longest(items: Sequence[Item]) -> list[Item]:
    different = {prompt_of(item): item for item in reversed(items)}.values()
    ordered = sorted(different, key=lambda item: (-len(item.question), item.question))
    return ordered[: max(len(ordered) // 4, 1)]


def _system_prompt(source: DataSource, answered: bool) -> str:
    """The one that is given, else one that asks for tags, if there is an answer to mark."""
    if source.system is None:
        return SYSTEM_PROMPT if answered else ""
    try:
        return Path(source.system).expanduser().read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"system={source.system} cannot be read: {error}") from error


def _item(source: DataSource, row: Mapping[str, Any], number: int) -> Item:
    for column in (source.question, source.answer, source.worked):
        if column and column not in row:
            have = ", ".join(map(str, row)) or "none"
            raise ConfigError(
                f"{source.place} row {number} has no column {column!r}; it has {have}; map it as in "
                f"{source.kind}:{source.place}?question=COLUMN&answer=COLUMN"
            )
    answer, own = read_gold(row[source.answer]) if source.answer else ("", None)
    worked = cell_text(plain(row.get(source.worked or "worked")))
    if source.kind == "gsm8k" and source.worked is None:
        solution, mark, _ = answer.rpartition("####")
        worked = re.sub(r"<<[^>]*>>", "", solution).strip() if mark else worked
    asked = plain(row[source.question])
    if source.question == source.answer and is_chat(asked):
        asked = asked[:-1]  # the last message is the answer
    return row_item(
        f"{source.place} row {number}",
        asked,
        answer=answer,
        worked=worked or None,
        columns={**row, **({"answer": own} if source.answer else {})},
    )


def _check_answers(place: str, items: Sequence[Item]) -> None:
    """Raises ConfigError if some rows have no answer: they would be taught, and count as wrong."""
    if missing := [number for number, item in enumerate(items, 1) if not item.answer]:
        raise ConfigError(
            f"{place} row {missing[0]} has no answer, as {len(missing)} of its {len(items)} rows; leave these rows out, or give all "
            "an answer"
        )


def _rows(source: DataSource) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]] | None]:
    path = Path(source.place).expanduser()
    named = Path(source.test).expanduser() if source.test else None
    if path.is_dir():
        train, test = path / "train.jsonl", path / "test.jsonl"
        if test.exists() and not train.exists():
            train, test = test, train
        held_out = named or test
        return read_rows(train, source.kind), read_rows(held_out, source.kind) if held_out.exists() else None
    if path.exists():
        return read_rows(path, source.kind), read_rows(named, source.kind) if named else None
    if source.kind != "gsm8k" or path.suffix:
        raise ConfigError(f"no file {source.place} for {source.name}")
    return _from_hub(source)


def _from_hub(source: DataSource) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]] | None]:
    """Both splits of a hub data set; downloads, because its name was given."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise ConfigError(f"{source.place} is no file; to take it from the hub, pip install datasets") from error
    try:
        dataset: Any = load_dataset(source.place, "main")
    except Exception as error:
        raise ConfigError(f"{source.place} is no file, and the hub gave no data set of that name: {error}") from error
    train, test = (named_rows(dataset[each], source.answer) if each in dataset else None for each in ("train", "test"))
    if train is None:
        raise ConfigError(f"{source.place} has no split called train; it has {', '.join(dataset)}")
    return train, test


def read_rows(path: Path, kind: str) -> list[Mapping[str, Any]]:
    """The rows of a JSONL or CSV file. Raises ConfigError if there are none, StorageError for a line that cannot be read."""
    if not path.exists():
        raise ConfigError(f"no file {path}; expected a {'CSV' if kind == 'csv' else 'JSONL'} file")
    rows: list[Mapping[str, Any]] = [*(_csv_rows(path) if kind == "csv" else read_json_lines(path).whole())]
    if not rows:
        raise ConfigError(f"{path} has no rows")
    return rows


def _delimiter(text: str) -> str:
    """What stands between cells: that by which most of the first rows have as many cells as the header, two at least."""

    def shape(between: str) -> tuple[int, int]:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=between)
        try:
            width, *widths = [len(row) for row in islice(rows, _LOOKED_AT) if row] or [0]
        except csv.Error:
            return 0, 0
        return (widths.count(width), width) if width > 1 else (0, 0)

    return max(_DELIMITERS, key=shape)


def _csv_rows(path: Path) -> list[Mapping[str, Any]]:
    """The rows; those of a file with tabs as they stand, if its quotes are letters like any others."""
    text = read_text(path).removeprefix("\ufeff")
    between = _delimiter(text)
    blanks = f"{between} " in text.partition("\n")[0]  # as in: question, answer
    before = csv.field_size_limit(_LONGEST_CELL)  # it is the whole process's
    try:
        try:
            return list(_cells(path, text, delimiter=between, quoting=csv.QUOTE_MINIMAL, skipinitialspace=blanks))
        except StorageError as error:
            if between != "\t" or not isinstance(error.__cause__, csv.Error):
                raise
            return list(_cells(path, text, delimiter=between, quoting=csv.QUOTE_NONE))
    finally:
        csv.field_size_limit(before)


def _cells(path: Path, text: str, **form: Any) -> Iterator[Mapping[str, Any]]:
    """Rows of cells. ``strict``: else a quote that is not closed takes in all rows behind it."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, **form)
    try:
        names = reader.fieldnames or ()
        if len(names) == 1:
            raise StorageError(
                f"{path} has one column, {names[0]!r}; expected two or more with a comma, a semicolon, a tab or | between the cells, as "
                "in question,answer"
            )
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise StorageError(f"{path} has two columns called {twice!r}; give each a name of its own")
        for row in reader:
            if None in row:
                raise StorageError(f"{path} line {reader.line_num} has more cells than the header has columns")
            yield {key: value for key, value in row.items() if value is not None}
    except csv.Error as error:
        raise StorageError(
            f"{path} line {reader.reader.line_num} cannot be read: {error}; a cell that begins with a quote ends with one, and doubles those inside"
        ) from error
