"""Rows of Parquet files and of data sets of the hub, by the package datasets."""

import json
import time
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import ConfigError, StorageError

datasets = pytest.importorskip("datasets")

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "note": "odd" if n % 2 else None} for n in range(40)]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def questions(name: str) -> set[str]:
    spec = environments.load(name)
    return {item.question for items in spec.data_set.splits.values() for item in items}


def test_a_parquet_file_is_read_as_the_same_rows_in_jsonl(tmp_path: Path) -> None:
    """A Parquet file was refused."""
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    by_kind = [
        environments.load(environments.file_name(str(tmp_path / f"rows.{kind}"))) for kind in ("parquet", "jsonl")
    ]
    splits = [
        {name: [item.question for item in items] for name, items in spec.data_set.splits.items()} for spec in by_kind
    ]
    assert splits[0] == splits[1]


def test_a_folder_of_a_data_set_is_read_with_its_splits(tmp_path: Path) -> None:
    for split, rows in (("train", ROWS[:30]), ("test", ROWS[30:])):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = environments.load(f"hf:{tmp_path}")
    assert {item.question for item in spec.data_set.splits["held-out"]} == {row["question"] for row in ROWS[30:]}
    assert questions(f"hf:{tmp_path}@test") == {row["question"] for row in ROWS[30:]}


@pytest.mark.usefixtures("offline")
def test_a_hub_that_does_not_answer_is_one_sentence_after_one_try() -> None:
    """Five tries took 25 seconds."""
    began = time.monotonic()
    with pytest.raises(ConfigError, match="the hub gave no data set owner/name:main@train") as refused:
        environments.load("hf:owner/name:main@train")
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 10


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(StorageError, match="cannot be read as a Parquet file"):
        environments.load(f"parquet:{tmp_path / 'rows.parquet'}")


def test_a_name_of_the_hub_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"hf needs a name, as in hf:OWNER/NAME\[:CONFIG\]\[@SPLIT\]"):
        environments.load("hf:")
