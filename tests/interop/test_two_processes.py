"""Several processes are one trainer: the same gradient, the same weights, the same metrics; whole models, or each a part of one."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from short_runs import lamps_nano

from gradus.core import ConfigError
from gradus.policies.local.loading import load_model
from gradus.training.distributed import processes
from gradus.training.distributed.processes import world
from gradus.training.engine import fsdp as sharding
from gradus.training.run.folder import RunFolder

sys.path.insert(0, str(Path(__file__).parent))
import two_processes

SCRIPT = Path(__file__).parent / "two_processes.py"
STEPS = 5
WAIT = 400  # seconds for one launch, on a machine that is shared
PLAIN = ("grpo", "sft")
WAYS = {
    "data parallel": [
        "--multi_gpu"
    ],  # accelerate's ``--cpu`` starts one process only; this starts several, here without a GPU
    "fsdp": [
        *("--use_fsdp", "--fsdp_version", "2", "--fsdp_reshard_after_forward", "true"),
        *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
    ],
}

Train = Callable[..., dict[str, dict[str, Any]]]


def launch(command: Sequence[str], model: Path, folder: Path, kinds: Sequence[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [*command, str(SCRIPT), str(model), str(folder), str(STEPS), *kinds],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate(timeout=WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # the launcher and what it launched
            raise
    assert running.returncode == 0, said[-3000:]
    assert "was not left" not in said, said[-3000:]


def result(folder: Path) -> dict[str, Any]:
    """What two_processes.py saw of one kind, its last weights and its metrics."""
    (weights,) = (folder / "run" / "final").glob("*.safetensors")
    records = RunFolder(folder / "run").records()
    return {**torch.load(folder / "seen.pt"), "weights": load_file(weights), "records": records}


def compare(alone: dict[str, Any], together: dict[str, Any], *, weights: float = 1e-5, figures: float = 1e-4) -> None:
    assert (alone["size"], together["size"]) == (1, 2)
    assert float((alone["gradient"] - together["gradient"]).abs().max()) < 1e-5
    assert float(alone["gradient"].abs().max()) > 1e-2
    compare_runs(alone, together, weights=weights, figures=figures)


def compare_runs(alone: dict[str, Any], together: dict[str, Any], *, weights: float, figures: float) -> None:
    assert largest_difference(alone["weights"], together["weights"]) < weights
    of_one, of_both = (
        [each for each in run["records"] if each["kind"] != "laws"] for run in (alone, together)
    )  # a share measures none
    assert [record["kind"] for record in of_both] == [record["kind"] for record in of_one]
    assert sum(record["kind"] in ("step", "sft") for record in of_both) == STEPS  # one process writes
    for one, other in zip(of_one, of_both, strict=True):
        # Not ``tokens``: a prefix shared across the cut is computed once by each.
        for name in ("loss", "grad_norm", "reward_mean", "reward_std", "kl", "entropy", "trained_tokens", "accuracy"):
            assert other.get(name) == pytest.approx(one.get(name), abs=figures), name
        for name in ("validation_loss", "reward_mean"):
            assert other.get(name) == pytest.approx(one.get(name), abs=figures), name


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert set(one) == set(other)
    return max(float((weight - other[name]).abs().max()) for name, weight in one.items())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lamps_nano(tmp_path_factory.mktemp("together") / "nano", seed=3)


@pytest.fixture
def train(model: Path, tmp_path: Path, unused_port: int) -> Train:
    """``train(way, *kinds, begun=None)``: alone, or in two processes; ``begun`` is a folder of runs to go on with."""

    def trained(way: str, *kinds: str, begun: Path | None = None) -> dict[str, dict[str, Any]]:
        folder = begun or tmp_path / way
        if way == "alone":
            two_processes.run(str(model), folder, STEPS, kinds)
            return {kind: result(folder / kind) for kind in kinds}
        options = {"num_processes": 2, "num_machines": 1, "main_process_port": unused_port, "mixed_precision": "no"}
        listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        launcher = [sys.executable, "-m", "accelerate.commands.launch", *WAYS[way], *listed, "--dynamo_backend", "no"]
        launch(launcher, model, folder, kinds)
        return {kind: result(folder / kind) for kind in kinds}

    return trained


def test_two_processes_that_hold_a_part_each_train_as_one(train: Train) -> None:
    alone, together = train("alone", *PLAIN), train("fsdp", *PLAIN)
    for kind in PLAIN:
        compare(alone[kind], together[kind])
        assert 0.45 < together[kind]["kept"] < 0.55
    assert max(together[kind]["idle"] for kind in PLAIN) > 0  # shares of different numbers of passes were met


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_that_hold_the_model_each_train_as_one(train: Train) -> None:
    alone, together = train("alone", *PLAIN), train("data parallel", *PLAIN)
    for kind in PLAIN:
        compare(alone[kind], together[kind])
        assert together[kind]["kept"] == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_parts_go_with_adapters_checkpointed_activations_validation_muon_and_a_server(train: Train) -> None:
    """AdamW divides rounding by rounding where a gradient is almost zero, and Muon computes in bfloat16: hence the bounds."""
    kinds = {"grpo+lora": 1e-5, "sft+checkpointed": 1e-5, "grpo+validated": 1e-4, "sft+muon": 2e-2, "grpo+served": 1e-4}
    alone, together = train("alone", *kinds), train("fsdp", *kinds)
    for kind, bound in kinds.items():
        compare(alone[kind], together[kind], weights=bound, figures=1e-3 if kind == "sft+muon" else 1e-4)
        assert 0.45 < together[kind]["kept"] < 0.55, kind


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_add_up_gradients_of_bfloat16_in_float32(train: Train) -> None:
    """Each pass rounds its own gradient, in parts once more; the sum over passes and processes rounds nothing."""
    kind = "sft+bfloat16"
    alone, parallel, parts = (train(way, kind)[kind]["gradient"] for way in ("alone", "data parallel", "fsdp"))
    assert float((alone - parallel).norm() / alone.norm()) < 1e-6
    assert float((alone - parts).norm() / alone.norm()) < 3e-3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_goes_on_with_another_number_of_processes(train: Train, tmp_path: Path) -> None:
    """A checkpoint is the same whoever wrote it."""
    unbroken = {way: train(way, *PLAIN) for way in ("alone", "fsdp")}
    for writer, reader in (("alone", "fsdp"), ("fsdp", "alone"), ("fsdp", "fsdp")):
        for kind, weights in go_on(train, tmp_path, writer, reader).items():
            assert largest_difference(unbroken[writer][kind]["weights"], weights) < 1e-5


def go_on(train: Train, folder: Path, writer: str, reader: str) -> dict[str, dict[str, torch.Tensor]]:
    """The last weights of the runs that ``writer`` took two steps of, where ``reader`` goes on with them."""
    begun = folder / f"{writer} then {reader}"
    for kind in PLAIN:
        shutil.copytree(folder / writer / kind / "run", begun / kind / "run")
        shutil.rmtree(begun / kind / "run" / "final")
        for later in (4, STEPS):
            shutil.rmtree(begun / kind / "run" / "checkpoints" / f"step-{later:06d}")
    resumed = train(reader, *PLAIN, begun=begun)
    assert all(len(one["records"]) == STEPS for one in resumed.values())
    return {kind: one["weights"] for kind, one in resumed.items()}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``launched(NAME="value")``: as a launcher would have set the environment."""

    def set_environment(**variables: str) -> None:
        for name, value in {"WORLD_SIZE": "2", "RANK": "0", **variables}.items():
            monkeypatch.setenv(name, value)
        processes.world.cache_clear()
        sharding.fsdp_settings.cache_clear()

    yield set_environment
    processes.world.cache_clear()
    sharding.fsdp_settings.cache_clear()


def test_deepspeed_is_refused_with_the_way_out(launched: Callable[..., None]) -> None:
    launched(ACCELERATE_USE_DEEPSPEED="true")
    with pytest.raises(ConfigError, match="launch with FSDP 2"):
        world()


def test_a_launch_with_a_precision_of_its_own_is_refused(launched: Callable[..., None]) -> None:
    launched(ACCELERATE_MIXED_PRECISION="bf16")
    with pytest.raises(ConfigError, match="set autocast = true"):
        world()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FSDP_VERSION": "1"}, "FSDP 1 is not supported"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "set gradient_checkpointing in the run"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "are not supported; launch with"),
    ],
)
def test_settings_of_fsdp_that_are_not_followed_are_refused(
    launched: Callable[..., None], variables: dict[str, str], message: str
) -> None:
    launched(FSDP_VERSION="2", FSDP_RESHARD_AFTER_FORWARD="true")
    assert sharding.fsdp_settings().reshard_after_forward is True
    launched(**{"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true", **variables})
    with pytest.raises(ConfigError, match=message):
        sharding.fsdp_settings()


def test_alone_nothing_is_dealt_out(model: Path) -> None:
    loaded = load_model(model, device="cpu")
    assert sharding.shard(loaded, samples=True) is loaded
    assert not sharding.is_sharded(loaded.model)
    assert sharding.full_state_dict(loaded.model) is None
