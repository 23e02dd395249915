"""Data sets in files as environments: ``gsm8k:``, ``jsonl:``, ``csv:`` and ``parquet:``, or of the Hugging Face hub: ``hf:``.

An argument is a path with options behind a question mark, as in a web address:

    jsonl:train.jsonl?question=prompt&answer=target&worked=solution&test=test.jsonl&system=prompt.txt

``question``, ``answer`` and ``worked`` name columns; without them usual names are looked for. ``answer=`` takes no answers, for
rewards that need none. ``test`` is a second file that is held out; without it a tenth of the rows is, chosen by their text.
``system`` is a file with the system prompt.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from gradus.core import ConfigError, EnvironmentSpec, StorageError
from gradus.core.files import parse_json_lines, read_text, similar_file
from gradus.core.frozen_record import frozen_record
from gradus.environments.options import format_of, known_options
from gradus.environments.verifiable.from_rows import spec_of
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item, TableTasks, split_items
from gradus.environments.verifiable.rows import Columns, Row, check_answers, list_rows, read_items, usual_columns

_OPTIONS = {"question": str, "answer": str, "worked": str, "test": str, "system": str}
_HUB_SECONDS = 10.0  # for the one question whether the hub answers and has the data set
_QUOTED = str.maketrans({character: quote(character) for character in "%&+= "})


@frozen_record
class DataSource:
    """A data set as named on a command line. ``kind`` is gsm8k, jsonl, csv, parquet or hf; ``place`` a path or a hub name.

    An option that is None was left out.
    """

    name: str
    kind: str
    place: str
    question: str | None = None
    answer: str | None = None
    worked: str | None = None
    test: str | None = None
    system: str | None = None


def quoted(value: str) -> str:
    """Quotes the value of an option as in a web address."""
    return value.translate(_QUOTED)


def parse_source(kind: str, argument: str | None) -> DataSource:
    """Reads the text after ``kind:``. Raises ConfigError for options that do not exist."""
    if not argument:
        if kind == "hf":
            raise ConfigError("hf needs a name, as in hf:OWNER/NAME[:CONFIG][@SPLIT]")
        hub = ", or a hub name, as in gsm8k:openai/gsm8k, which downloads it" if kind == "gsm8k" else ""
        raise ConfigError(f"{kind} needs a path, as in {kind}:PATH{hub}")
    name = f"{kind}:{argument}"
    place, _, query = argument.partition("?")
    return DataSource(name=name, kind=kind, place=place, **known_options(name, query, _OPTIONS))


def _load(kind: str, summary: str, recipe: str | None, argument: str | None = None) -> EnvironmentSpec:
    source = parse_source(kind, argument)
    way_out = f"map it as in '{kind}:{source.place}?question=COLUMN&answer=COLUMN'"
    return spec_of(read_tasks(source), summary, recipe, way_out=way_out)


# ``gsm8k:PATH`` (a JSONL file, or a folder with train.jsonl and test.jsonl) or ``gsm8k:HUB/NAME``
load_gsm8k = partial(_load, "gsm8k", "grade-school problems in words", "gsm8k.toml")
load_jsonl = partial(_load, "jsonl", "questions and answers out of a JSONL file", None)
load_csv = partial(_load, "csv", "questions and answers out of a CSV file", None)
load_parquet = partial(_load, "parquet", "questions and answers out of a Parquet file", None)
# ``hf:OWNER/NAME``, ``hf:OWNER/NAME:CONFIG@SPLIT``, or the folder of a data set
load_hf = partial(_load, "hf", "questions and answers of a data set of the hub", None)


def read_tasks(source: DataSource) -> TableTasks:
    """Reads all rows, in splits. The stages of a run ask for the same rows: they are read again only if a file changed.

    Raises ConfigError for a missing file or column, StorageError for a line that cannot be read.
    """
    place = Path(source.place).expanduser()
    # All files that may decide about the rows; a change of any of them is seen.
    paths = [place, place / "train.jsonl", place / "test.jsonl"]
    paths += [Path(name).expanduser() for name in (source.test, source.system) if name]
    stats = [(path.resolve(), path.stat()) for path in paths if path.exists()]
    return _read(source, tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats))


@lru_cache(maxsize=1)
def _read(source: DataSource, files: tuple[tuple[Path, int, int], ...]) -> TableTasks:
    """Reads a source. ``files``: path, time of change in nanoseconds and size in bytes of each, by which a read is kept."""
    train, test = _rows(source)
    # Both files are looked at together, so that a test file cannot have its answers in another column.
    columns = usual_columns(
        [*train, *test],
        source.place,
        "?answer=COLUMN names another one, ?answer= none",
        question=source.question,
        answer=source.answer,
    )
    columns = replace(columns, worked=source.worked or "worked")
    items = _items(source, train, columns, source.place)
    test_place = source.test or f"the test file of {source.place}"
    held_out = _items(source, test, columns, test_place) if test else []
    answered = any(item.answer for item in (*items, *held_out))
    # Rows without answers beside rows with answers are mistakes; rows that all lack them are questions.
    if answered:
        check_answers(items, f"{source.place} ")
        check_answers(held_out, f"{source.test or source.place} ")
    return split_items(
        source.name,
        items,
        held_out or None,
        system_prompt=_system_prompt(source, answered),
        way_out=f", or a second file, as in {source.kind}:{source.place}?test=FILE",
    )


def _items(source: DataSource, rows: Sequence[Row], columns: Columns, place: str) -> list[Item]:
    way_out = f"; map them as in '{source.kind}:{source.place}?question=FIRST&answer=LAST'"
    items = read_items(rows, columns, place=place, way_out=way_out)
    if source.kind != "gsm8k" or source.worked is not None:
        return items
    return [_with_solution(item) for item in items]


def _with_solution(item: Item) -> Item:
    """Takes the text before ``####`` as the worked solution, as in GSM8K."""
    solution, mark, _ = item.answer.rpartition("####")
    if not mark:
        return item
    # A calculator's annotations, as in 48/2 = <<48/2=24>>24.
    worked = re.sub(r"<<[^>]*>>", "", solution).strip()
    return replace(item, worked=worked or None)


def _system_prompt(source: DataSource, answered: bool) -> str:
    """Reads the file that the source names; else takes a prompt that asks for tags, if there is an answer to mark."""
    if source.system is None:
        return SYSTEM_PROMPT if answered else ""
    try:
        return Path(source.system).expanduser().read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"system={source.system} cannot be read: {error}") from error


def _rows(source: DataSource) -> tuple[list[Row], list[Row]]:
    """Reads the rows of the source and those that are held out; none if no file has any."""
    path = Path(source.place).expanduser()
    test = Path(source.test).expanduser() if source.test else None
    if source.kind == "hf":
        train, held_out = _from_hub(source)
        return train, _test_rows(test, "jsonl") if test else held_out
    if path.is_dir():
        # A folder as GSM8K is published; a test file that is named comes before the one in the folder.
        beside = path / "test.jsonl"
        if test is None and beside.exists():
            test = beside
        path = path / "train.jsonl"
    elif not path.exists():
        # A name with a suffix is a mistyped path, and is not looked for on the hub.
        if source.kind != "gsm8k" or path.suffix:
            raise ConfigError(f"no file {source.place}{similar_file(path)}")
        return _from_hub(source)
    return read_rows(path, source.kind), _test_rows(test, source.kind) if test else []


def _test_rows(path: Path, kind: str) -> list[Row]:
    """Reads a second file by its own suffix, or as ``kind``."""
    return read_rows(path, format_of(path.name) or kind)


def _from_hub(source: DataSource) -> tuple[list[Row], list[Row]]:
    """Takes the splits train and test of a data set, or the one split that is named; downloads, because its name was given.

    Raises ConfigError if the hub does not answer, after one try, or does not have it.
    """
    datasets = _datasets(source.place)
    place, _, split = source.place.partition("@")
    name = place
    config = ""
    if not Path(place).is_dir():  # whose path may hold a colon
        name, _, config = place.partition(":")
    if source.kind == "gsm8k":
        config = config or "main"
    try:
        if not Path(name).is_dir():
            _ask_hub(name)
        loaded: Any = datasets.load_dataset(name, config or None, split=split or None)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"the hub gave no data set {source.place}: {reason or type(error).__name__}") from error
    if split:
        return _listed(loaded), []
    if "train" not in loaded:
        raise ConfigError(f"{name} has no split called train; name one of {', '.join(loaded)} as in hf:{place}@SPLIT")
    return _listed(loaded["train"]), _listed(loaded.get("test", ()))


def _ask_hub(name: str) -> None:
    """Asks for the data set once, before a library that asks five times. Raises what the hub's client raises."""
    from huggingface_hub import HfApi

    HfApi().dataset_info(name, timeout=_HUB_SECONDS)


def _datasets(place: str) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError(f"{place} is read by the package datasets; pip install datasets") from error
    return datasets


def _listed(split: Any) -> list[Row]:
    """Rows as dictionaries, without cells that are empty."""
    return list(map(_without_gaps, split))


def read_rows(path: Path, kind: str) -> list[Row]:
    """Reads the rows of a JSONL, CSV or Parquet file. Raises ConfigError if it has none, StorageError for a line that cannot be read."""
    if not path.exists():
        raise ConfigError(f"no file {path}{similar_file(path)}; expected a {_FORMATS.get(kind, 'JSONL')} file")
    rows = list(_READERS[kind](path))
    if not rows:
        raise ConfigError(f"{path} has no rows")
    return rows


def _json_rows(path: Path) -> Sequence[Row]:
    """Reads an object a line, or one list of objects."""
    text = read_text(path).removeprefix("\ufeff")
    if not text.lstrip().startswith("["):
        return parse_json_lines(text, str(path))
    try:
        return list_rows(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not JSON: {error}") from error


def _csv_rows(path: Path) -> list[Row]:
    """Reads cells between commas, between tabs in a .tsv file. ``strict``: a quote that is not closed would take in the next rows."""
    # read_text has unpacked .gz, but the name still has it.
    tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
    text = read_text(path).removeprefix("\ufeff")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter="\t" if tabs else ",")
    try:
        names = list(reader.fieldnames or ())
        rows = list(reader)
    except csv.Error as error:
        raise StorageError(
            f"{path} line {reader.reader.line_num} cannot be read: {error}; a cell that begins with a quote ends with one, and doubles those inside"
        ) from error
    separator = "tab" if tabs else "comma"
    # A wrong separator shows as a single column.
    if len(names) < 2 or len(set(names)) < len(names):
        raise StorageError(
            f"{path} has the columns {', '.join(names) or 'none'}; expected two or more, each with a name of its own, and a "
            f"{separator} between the cells; save a table of another form so, or as JSONL"
        )
    if any(reader.restkey in row for row in rows):
        raise StorageError(f"{path} has a line with more cells than the header has columns")
    return [_without_gaps(row) for row in rows]


def _without_gaps(row: Row) -> Row:
    """Leaves out cells that are empty, as those behind the end of a short line."""
    return {name: cell for name, cell in row.items() if cell is not None}


def _parquet_rows(path: Path) -> list[Row]:
    datasets = _datasets(str(path))
    try:
        with TemporaryDirectory(prefix="gradus-parquet-") as cache:
            return _listed(datasets.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True))
    except Exception as error:
        raise StorageError(f"{path} cannot be read as a Parquet file: {error}") from error


_FORMATS = {"csv": "CSV", "parquet": "Parquet"}
_READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    "jsonl": _json_rows,
    "gsm8k": _json_rows,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
}
