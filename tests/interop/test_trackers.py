"""Trackers: what they wrote is read back, with the tracker's own reader or its own message types."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradus.training.run.trackers import open_trackers

RECORDS: list[Mapping[str, Any]] = [
    {"kind": "step", "step": 1, "reward_mean": 0.25, "kl": None, "seconds": {"policy": 1.5}, "metrics": {"play": 0.5}},
    {"kind": "validation", "step": 1, "decoding": "greedy", "reward_mean": 0.3, "best": True},
    {"kind": "step", "step": 2, "reward_mean": 0.75, "kl": float("nan"), "seconds": {"policy": 2.5}, "metrics": {}},
    {"kind": "alert", "step": 2, "rule": "kl explosion", "severity": "warn", "evidence": "kl 3", "remedy": "lower lr"},
]


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


def test_nothing_is_imported_that_was_not_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from gradus.training.run.trackers import open_trackers\n"
        f"with open_trackers(['jsonl'], {str(tmp_path)!r}) as trackers: trackers({{'kind': 'step', 'step': 1}})\n"
        "assert not {'torch', 'tensorboard', 'wandb', 'trl', 'gymnasium'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(tmp_path.iterdir())
