"""Stages and adaptive weights in the GRPO loop: paid, written down, and the same after a resume, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gradus import environments
from gradus.policies import NanoConfig, SamplingConfig, make_nano
from gradus.rewards import AdaptiveConfig, RewardSchedule, StageConfig
from gradus.training import GrpoConfig, train_grpo

SPEC = environments.load("arithmetic:digits=1")
CONFIG = GrpoConfig(
    max_steps=4,
    groups=2,
    group_size=2,
    learning_rate=1e-2,
    validation_every=0,
    checkpoint_every=1,
    store_every=0,
    sampling=SamplingConfig(max_new_tokens=6),
)
STAGES = [
    StageConfig(name="form", steps=2, weights={"format": 1.0, "incremental_format": 1.0}, learning_rate=2e-2),
    StageConfig(name="sums", steps=2, carry_optimiser=False),
]


def schedule() -> RewardSchedule:
    return RewardSchedule(SPEC.grader().weights, stages=STAGES, adaptive=AdaptiveConfig())


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = NanoConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32, context=64)
    assert SPEC.vocabulary is not None
    return make_nano(tmp_path_factory.mktemp("nano") / "model", SPEC.vocabulary(), shape)


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: line.get(key) for key in ("step", "stage", "weights", "learning_rate", "reward_mean")} for line in lines
    ]


def test_a_resumed_schedule_is_the_unbroken_one(nano: Path, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(record) -> None:
        if record["step"] == killed_after:
            raise Killed

    train_grpo(nano, SPEC, CONFIG, tmp_path / "whole", schedule=schedule(), live=False)
    whole = records(tmp_path / "whole")
    assert [line["stage"] for line in whole] == ["form", "form", "sums", "sums"]
    assert whole[0]["weights"] == {"correct": 0.0, "format": 1.0, "incremental_format": 1.0}
    assert whole[2]["weights"] == dict(SPEC.grader().weights)
    assert [line["learning_rate"] for line in whole] == [2e-2, 2e-2, 1e-2, 1e-2]
    assert whole[1]["weights"] != whole[0]["weights"]  # the format is rare at first, so its weight grows
    for killed_after in (1, 2, 3):
        folder = tmp_path / f"killed-{killed_after}"
        with pytest.raises(Killed):
            train_grpo(nano, SPEC, CONFIG, folder, schedule=schedule(), live=False, on_step=kill)
        train_grpo(nano, SPEC, CONFIG, folder, schedule=schedule(), live=False, resume=True)
        assert records(folder) == whole
        one, other = (load_file(path / "final" / "model.safetensors") for path in (tmp_path / "whole", folder))
        assert all(torch.equal(one[name], other[name]) for name in one)
