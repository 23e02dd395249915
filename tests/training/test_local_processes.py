"""Processes that the trainer starts itself: they train as one, and nobody waits for one that is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import lamps
from safetensors.torch import load_file

from gradus import commands
from gradus.commands.training import make_recipe
from gradus.core import ConfigError, GradusError
from gradus.runs.stages.training_processes import training_processes
from gradus.training.distributed.local_processes import together
from gradus.training.distributed.processes import gather, world

OTHER = "local_process:take_part"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


SMALL = {
    **{f"model.nano.{name}": 32 for name in ("hidden_size", "intermediate_size")},
    "model.nano.layers": 1,
    "model.nano.heads": 2,
    "grpo.max_steps": 3,
    "grpo.groups": 3,  # an odd number, so that the shares differ
    "grpo.group_size": 4,
    "grpo.validation_every": 2,
    "grpo.validation_tasks": 1,  # so that one of two processes has nothing to do
    "grpo.checkpoint_every": 1,
    "sft.max_steps": 3,
    "sft.batch_size": 5,
    "sft.validation_every": 2,
    "sft.autocast": False,
    "sft.optimizer": "adamw",  # Muon multiplies in bfloat16
    "grpo.optimizer": "adamw",
    "grpo.backward": "float32",
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "final" / "model.safetensors")


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained(folder: Path, processes: int) -> Path:
    """SFT and GRPO, alone or in two processes."""
    settings = {**SMALL, "sft.processes": processes, "grpo.processes": processes}
    commands.teach("rhythm", episodes=40, out=folder / "teach.jsonl")
    model = commands.sft("rhythm", folder / "teach.jsonl", out=folder / "sft", settings=settings)
    commands.grpo("rhythm", model, out=folder / "grpo", settings=settings)
    return folder


def test_two_processes_train_as_one_and_leave_this_one_as_it_was(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    alone, both = trained(tmp_path / "alone", 1), trained(tmp_path / "both", 2)
    for stage in ("sft", "grpo"):
        one, other = weights(alone / stage), weights(both / stage)
        assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5
        before, after = records(alone / stage), records(both / stage)
        assert [each["kind"] for each in before] == [each["kind"] for each in after]
        for name in ("loss", "reward_mean", "validation_loss", "rewards", "trained_tokens"):
            for left, right in zip(before, after, strict=True):
                assert right.get(name) == pytest.approx(left.get(name), abs=1e-4), name
    assert (world().size, torch.get_num_threads()) == (1, threads)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("when", "said"), [("before", "no such model"), ("between", "out of memory")])
def test_a_process_that_ends_is_told_of(when: str, said: str) -> None:
    def talk() -> None:
        with together(2, OTHER, {"rounds": 2, "fails": when}):
            for _ in range(9):
                gather([0])

    with pytest.raises(GradusError, match=rf"process 2 of 2 .* code 1 \({said}\).*processes = 1"):
        talk()
    assert world().size == 1


def test_an_error_here_ends_the_others(tmp_path: Path) -> None:
    def talk() -> None:
        with together(2, OTHER, {"rounds": 9, "pid": str(tmp_path / "pid")}):
            assert gather([world().rank]) == [0, 1]
            raise ConfigError("mine")

    with pytest.raises(ConfigError, match="mine"):
        talk()
    assert not runs(int((tmp_path / "pid").read_text()))


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = "import sys,time; from gradus.training.distributed.local_processes import together\n"
    script += "from gradus.training.distributed.processes import gather\n"
    script += f"sys.path.insert(0, {str(Path(__file__).parent)!r})\nwith together(2, {OTHER!r}, dict(rounds=9, pid={str(tmp_path / 'pid')!r})): gather([0]); time.sleep(99)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    first = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        wait_until((tmp_path / "pid").exists)
    finally:
        first.kill()
        first.wait()
    wait_until(lambda: not runs(int((tmp_path / "pid").read_text() or 1)))
    assert not list(tmp_path.glob("gradus-processes-*"))


def runs(process: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"grpo.async_level": 1, "grpo.correction": "truncate"}, "async_level"), ({"grpo.device": "cuda"}, "on GPUs")],
)
def test_one_process_trains_where_several_cannot(
    changes: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe("rhythm", settings={"grpo.processes": 2, **changes})
    with training_processes(recipe, "grpo", model="model", folder=tmp_path, resume=False):
        assert world().size == 1
    assert reason in capsys.readouterr().err


def test_an_environment_that_this_process_alone_knows_is_trained_here(
    lamps_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"grpo.processes": 2, "grpo.max_steps": 1, "grpo.groups": 2, "grpo.group_size": 2}
    commands.grpo(lamps(), lamps_model, out=tmp_path / "run", settings=settings)
    assert "known to this process alone" in capsys.readouterr().err
    assert len([each for each in records(tmp_path / "run") if each["kind"] == "step"]) == 1


def test_sessions_that_an_environment_limits_are_not_opened_by_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe("rhythm", settings={"grpo.processes": 2, "stepping.max_concurrent": 64})
    with training_processes(recipe, "grpo", model="model", folder=tmp_path, resume=False):
        assert world().size == 1
    assert "limits the episodes" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_of_two_processes_that_is_stopped_goes_on_bit_for_bit(tmp_path: Path, how: signal.Signals) -> None:
    alone = trained(tmp_path / "unbroken", 2)
    settings = [f"--set={name}={value}" for name, value in {**SMALL, "grpo.processes": 2}.items()]
    model = str(alone / "sft" / "best")
    command = [sys.executable, "-m", "gradus", "grpo", "rhythm", "--model", model, "--out", str(tmp_path / "run")]
    first = subprocess.Popen([*command, *settings], start_new_session=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"kind": "step"' in metrics.read_text())
    os.kill(first.pid, how)
    assert first.wait() != 0
    subprocess.run([*command, *settings, "--resume"], check=True)
    one, other = weights(alone / "grpo"), weights(tmp_path / "run")
    assert all(torch.equal(one[name], other[name]) for name in one)
