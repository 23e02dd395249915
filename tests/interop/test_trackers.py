"""Trackers: what they wrote is read back, with the tracker's own reader or its own message types."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradus.core import ConfigError
from gradus.training.run.trackers import figures, open_trackers

RECORDS: list[Mapping[str, Any]] = [
    {"kind": "step", "step": 1, "reward_mean": 0.25, "kl": None, "seconds": {"policy": 1.5}, "metrics": {"play": 0.5}},
    {"kind": "validation", "step": 1, "decoding": "greedy", "reward_mean": 0.3, "best": True},
    {"kind": "step", "step": 2, "reward_mean": 0.75, "kl": float("nan"), "seconds": {"policy": 2.5}, "metrics": {}},
    {"kind": "alert", "step": 2, "rule": "kl explosion", "severity": "warn", "evidence": "kl 3", "remedy": "lower lr"},
]


def test_figures_are_the_finite_numbers() -> None:
    assert dict(figures(RECORDS[0])) == {"reward_mean": 0.25, "seconds/policy": 1.5, "metrics/play": 0.5}
    assert dict(figures(RECORDS[1])) == {"reward_mean": 0.3}
    assert "kl" not in dict(figures(RECORDS[2]))


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_trackers(["jsonl", "tensorboard"], tmp_path, name="trial", config={"seed": 4}) as trackers:
        for record in RECORDS:
            trackers(record)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    rewards = [(event.step, event.value) for event in events.Scalars("step/reward_mean")]
    assert rewards == [(1, 0.25), (2, 0.75)]
    assert [(event.step, event.value) for event in events.Scalars("validation/greedy/reward_mean")] == [
        (1, pytest.approx(0.3))
    ]
    assert "step/kl" not in events.Tags()["scalars"]  # undefined is not zero


def logged(raw: bytes) -> Iterator[bytes]:
    """Messages of a .wandb file: LevelDB's log format behind a header of 7 bytes. W&B's own package has no reader to import."""
    block, header, at = 32_768, 7, 7
    whole = b""
    while at + header <= len(raw):
        if block - at % block < header:  # the rest of a block is too short for a header and stays empty
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", raw[at + 4 : at + header])
        whole += raw[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # a whole message, or its last part
            yield whole
            whole = b""


def test_wandb_writes_a_run_that_its_reader_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with open_trackers(["wandb"], tmp_path, name="trial", config={"seed": 4}) as trackers:
        for record in RECORDS:
            trackers(record)
    import wandb  # pyright: ignore[reportMissingImports] - an extra

    wandb.teardown()  # its service writes behind ``finish``; a process waits for that when it ends
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    from wandb.proto import wandb_internal_pb2

    rewards: list[float] = []
    for raw in logged(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(raw)
        named = ((item.key or "/".join(item.nested_key), item.value_json) for item in entry.history.item)
        rewards.extend(float(value) for name, value in named if name == "step/reward_mean")
    assert rewards == [0.25, 0.75]


def test_a_resumed_run_replaces_the_steps_it_takes_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rewards in (
        [(1, 0.1), (2, 0.2), (3, 0.3)],
        [(3, 0.4), (4, 0.5)],
    ):  # killed behind step 3's record, resumed at 2
        with open_trackers(["tensorboard"], tmp_path) as trackers:
            for step, reward in rewards:
                trackers({"kind": "step", "step": step, "reward_mean": reward})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = [(event.step, round(event.value, 3)) for event in events.Scalars("step/reward_mean")]
    assert seen == [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.5)]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_a_missing_package_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gradus-rl\[wandb\]"), open_trackers(["wandb"], tmp_path):
        pass


def test_names_are_checked_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mlflow"), open_trackers(["tensorboard", "mlflow"], tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_nothing_is_imported_that_was_not_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from gradus.training.run.trackers import open_trackers\n"
        f"with open_trackers(['jsonl'], {str(tmp_path)!r}) as trackers: trackers({{'kind': 'step', 'step': 1}})\n"
        "assert not {'torch', 'tensorboard', 'wandb', 'trl', 'gymnasium'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(tmp_path.iterdir())
