"""Trackers and samplers by name: from the command line and from a recipe."""

import json
import sys
from pathlib import Path

import pytest
from command_line import gradus

from gradus import commands
from gradus.core import ConfigError
from gradus.runs.forecast.checks import require_names
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.runner import run_stages

TINY = [
    "model.nano.hidden_size=32",
    "model.nano.layers=1",
    "model.nano.intermediate_size=64",
    "sft.max_steps=3",
    "sft.batch_size=2",
    "sft.threads=1",
    "sft.short_turns=4",
    "sft.validation_every=3",
    "sft.validation_share=0.25",
    "grpo.max_steps=2",
    "grpo.groups=2",
    "grpo.group_size=2",
    "grpo.threads=1",
    "grpo.validation_every=2",
    "grpo.validation_tasks=1",
    "grpo.max_turns=4",
]


def changes() -> list[str]:
    return [word for change in TINY for word in ("--set", change)]


@pytest.fixture(scope="module")
def warm_started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm_started")
    commands.teach("rhythm", episodes=4, out=folder / "t.jsonl")
    gradus("sft", "rhythm", "-d", folder / "t.jsonl", "-o", folder / "sft", "--tracker", "tensorboard", *changes())
    return folder / "sft"


def scalars(folder: Path) -> dict[str, list[int]]:
    """Steps of every curve, by TensorBoard's own reader."""
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(folder))
    result.Reload()
    return {tag: [event.step for event in result.Scalars(tag)] for tag in result.Tags()["scalars"]}


def test_sft_and_grpo_send_all_their_records_to_the_tracker_that_was_asked_for(
    warm_started: Path, tmp_path: Path
) -> None:
    sft = scalars(warm_started / "sft" / "tensorboard")
    assert sft["sft/loss"] == [1, 2, 3]
    assert sft["sft/validation_loss"] == [3]
    gradus("grpo", "rhythm", "-m", warm_started, "-o", tmp_path / "run", "--tracker", "tensorboard", *changes())
    grpo = scalars(tmp_path / "run" / "grpo" / "tensorboard")
    assert grpo["step/reward_mean"] == [1, 2]
    assert grpo["validation/sampled/reward_mean"] == [0, 2]  # steps, validations and alerts, as in metrics.jsonl
    records = [json.loads(line) for line in (tmp_path / "run" / "grpo" / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "step" for record in records) == 2


def test_a_missing_tracker_is_said_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown tracker mlflow; there are jsonl .*tensorboard, wandb"):
        run_stages(resolve(load_recipe("rhythm", changes={"trackers": ["mlflow"]})), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("gradus.training.run.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'gradus-rl\[wandb\]'"):
        run_stages(resolve(load_recipe("rhythm", changes={"trackers": ["wandb"]})), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_missing_bitsandbytes_is_said_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.policies.local.loading.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'gradus-rl\[quantized\]'"):
        require_names(resolve(load_recipe("arithmetic", changes=["grpo.quantize=4bit", "grpo.lora.rank=2"])))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["grpo.sampler=http"], "needs sampler_url"),
        (["grpo.sampler=http", "grpo.sampler_url=http://localhost:1/v1"], "set correction = 'truncate'"),
        (["grpo.sampler_url=http://localhost:1/v1"], "sampler_url has no effect with sampler = .local."),
        (["grpo.correction=truncate"], "no effect with sampler = 'local'"),
        (["grpo.sampler=sglang"], "'local', 'http' or 'vllm'"),
    ],
)
def test_a_sampler_needs_its_settings_and_no_others(change: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_recipe("rhythm", changes=change)
