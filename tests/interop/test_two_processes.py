"""Two processes are one trainer: the same gradient, the same weights, the same metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import lamps
from safetensors.torch import load_file

from gradus.core import ConfigError
from gradus.policies import NanoConfig, make_nano
from gradus.training.distributed import world

SCRIPT = Path(__file__).parent / "two_processes.py"
STEPS = 5


def run(command: list[str], model: Path, folder: Path, kind: str) -> dict[str, Any]:
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ran = subprocess.run(
        [*command, str(SCRIPT), str(model), str(folder), kind, str(STEPS)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=170,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = torch.load(folder / "seen.pt")
    seen["weights"] = load_file(Path(seen["final"]) / "model.safetensors")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    seen["records"] = [json.loads(line) for line in lines]
    return seen


def compare(alone: dict[str, Any], together: dict[str, Any]) -> None:
    assert (alone["size"], together["size"]) == (1, 2)
    scale = float(alone["gradient"].abs().max())
    assert scale > 0
    assert float((alone["gradient"] - together["gradient"]).abs().max()) < 1e-5 * max(1.0, scale)
    for name, weight in alone["weights"].items():
        assert float((weight - together["weights"][name]).abs().max()) < 1e-5, name
    steps = [record for record in alone["records"] if record["kind"] in ("step", "sft")]
    others = [record for record in together["records"] if record["kind"] in ("step", "sft")]
    assert len(steps) == len(others) == STEPS  # one process writes
    for one, other in zip(steps, others, strict=True):
        # Not ``tokens``: a prefix shared across the cut is computed once by each.
        for name in ("loss", "grad_norm", "reward_mean", "reward_std", "kl", "entropy", "trained_tokens", "accuracy"):
            assert other.get(name) == pytest.approx(one.get(name), abs=1e-4), name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = lamps()
    assert spec.vocabulary is not None
    folder = tmp_path_factory.mktemp("together") / "nano"
    make_nano(folder, spec.vocabulary(), NanoConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64), seed=3)
    return folder


def launch(port: int) -> list[str]:
    """Accelerate's launcher. Its ``--cpu`` starts one process only; ``--multi_gpu`` starts several, here without a GPU."""
    options = {"num_processes": 2, "num_machines": 1, "main_process_port": port, "mixed_precision": "no"}
    listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *listed, "--dynamo_backend", "no"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_two_processes_train_as_one(model: Path, tmp_path: Path, kind: str, unused_port: int) -> None:
    alone = run([sys.executable], model, tmp_path / "alone", kind)
    together = run(launch(unused_port), model, tmp_path / "together", kind)
    compare(alone, together)
    print(f"\n{kind}, {STEPS} steps: alone {alone['seconds']:.1f} s, two processes {together['seconds']:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1", "2"])
def test_torch_shards_a_model_on_cpus_and_trains_it_to_the_same_weights(model: Path, version: str) -> None:
    """What torch can do; this trainer does not use it, see docs/scaling.md."""
    script = Path(__file__).parent / "sharded.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), str(model), version]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["gap"] < 1e-5
    assert 0.45 < found["share"] < 0.55


@pytest.mark.parametrize("flag", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_launch_that_shards_the_model_is_refused(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    for name, value in {flag: "true", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    world.cache_clear()
    try:
        with pytest.raises(ConfigError, match="needs all of it in every process"):
            world()
    finally:
        world.cache_clear()
