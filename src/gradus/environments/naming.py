"""Names of files of rows as names of environments."""

from __future__ import annotations

from pathlib import Path

from gradus.core import ConfigError

_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv"}
_OTHER_TABLES = (".parquet", ".arrow", ".feather", ".json", ".xls", ".xlsx", ".zst", ".bz2", ".xz", ".zip")


def file_name(name: str) -> str:
    """``rows.jsonl`` and ``rows.csv``, which may be gzipped, as environments; every other name as it is."""
    path = name.partition("?")[0]
    suffix = Path(path.lower().removesuffix(".gz")).suffix
    if any((Path(path) / mark).is_file() for mark in ("dataset_info.json", "dataset_dict.json")):
        raise ConfigError(
            f"{path} is a folder of the library datasets; write the rows of a split into a file by datasets.load_from_disk(...)"
            ".to_json('rows.jsonl'), where classes become numbers, or give the split itself to gradus.train, which takes their names"
        )
    if suffix in _OTHER_TABLES and ":" not in path:
        raise ConfigError(
            f"{path}: rows are read from .jsonl and .csv files alone; convert it, for example by pandas.DataFrame.to_json("
            "'rows.jsonl', orient='records', lines=True), or give the rows themselves"
            + (f", as in gradus.audit(datasets.Dataset.from_parquet({path!r}))" if suffix == ".parquet" else "")
        )
    if "?" in name and Path(name).is_file():
        raise ConfigError(
            f"{name} is a file, and options of a file stand behind a question mark; give it a name without one"
        )
    kind = _KINDS.get(suffix)
    return f"{kind}:{name}" if kind and (":" not in path or Path(path).is_file()) else name
