"""Groups that are rolled out one step ahead: by which weights, with which ratios, and over kills."""

from __future__ import annotations

import gzip
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Lamps, lamps
from safetensors.torch import load_file

from gradus.core import ConfigError, Observation
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions
from gradus.training.step_rollouts import StepRollouts

NOT_COMPARED = ("seconds", "tokens_per_second", "matmul_peak_share")


def settings(**changes: Any) -> GrpoConfig:
    base: dict[str, Any] = {
        "max_steps": 5,
        "groups": 4,
        "group_size": 4,
        "lr": 1e-2,
        "sampling": SamplingConfig(max_new_tokens=3, grammar=True),
        "validation_every": 0,
        "checkpoint_every": 2,
        "store_every": 1,
        "threads": 1,
        "device": "cpu",
        "async_level": 1,
        "correction": "truncate",
    }
    return GrpoConfig(**{**base, **changes})


def train(
    model: Path, folder: Path, config: GrpoConfig | None = None, spec: Any = None, *, resume: bool = False, **more: Any
) -> None:
    """Train in lamps by the settings above unless others are given."""
    options = GrpoOptions(live=False, **more)
    train_grpo(model, spec or lamps(), config or settings(), folder, resume=resume, options=options)


def steps(folder: Path) -> list[dict[str, Any]]:
    return [record for record in RunFolder(folder).records() if record["kind"] == "step"]


def answers(folder: Path, step: int) -> str:
    return gzip.decompress((folder / "episodes" / f"step-{step:06d}.jsonl.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def ahead(lamps_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead") / "run"
    train(lamps_model, folder)
    return folder


def test_groups_are_of_the_weights_one_step_before(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    records = steps(ahead)
    assert [record["weights_age"] for record in records] == [0, 1, 1, 1, 1]
    assert records[0]["logp_diff_max"] < 1e-4
    assert all(record["logp_diff_max"] > 1e-3 for record in records[1:])
    for record in records:
        assert record["seconds"]["waited"] >= 0
        assert record["seconds"]["overlapped"] >= 0
    assert records[0]["seconds"]["overlapped"] == 0.0
    train(lamps_model, tmp_path / "run", settings(async_level=0, correction=None))
    plain = steps(tmp_path / "run")
    assert [record["weights_age"] for record in plain] == [0] * 5
    assert answers(ahead, 1) == answers(tmp_path / "run", 1)  # the same weights and keys
    assert records[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=1e-5)
    assert answers(ahead, 3) != answers(tmp_path / "run", 3)


def test_older_samples_are_weighted_by_the_sampler_that_drew_them(
    ahead: Path, lamps_model: Path, tmp_path: Path
) -> None:
    """Read as if they were of the present weights, they would have a ratio of 1, no weight, and another gradient."""
    first, *late = steps(ahead)
    assert first["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert first["mismatch_ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert all(record["mismatch_ratio_max"] > 1.01 for record in late)
    assert all(record["mismatch_kl"] > 1e-5 for record in late)
    assert all(record["ratio_max"] == pytest.approx(1.0, abs=1e-5) for record in late)  # to the weights of the update
    clipped = settings(correction=None, old_logprobs="sampler", max_steps=2)
    train(lamps_model, tmp_path / "clipped", clipped)
    other = steps(tmp_path / "clipped")
    assert answers(tmp_path / "clipped", 2) == answers(ahead, 2)
    assert other[1]["ratio_max"] > 1.01  # the ratio itself is to the sampler
    assert "mismatch_ratio_max" not in other[1]
    with pytest.raises(ValueError, match="set correction = 'truncate'"):
        settings(correction=None)
    with pytest.raises(ValueError, match="set correction = 'truncate'"):
        settings(correction=None, old_logprobs="trainer")
    with pytest.raises(ValueError, match="set correction = 'truncate', and leave old_logprobs out"):
        settings(correction=None, old_logprobs="sampler", sampler="http", sampler_url="http://localhost/v1")


def test_a_correction_of_the_models_own_samples_is_refused(lamps_model: Path, tmp_path: Path) -> None:
    """It took the guard off: a sampler that was wrong by 0.4 nats would have been trained on."""
    with pytest.raises(ConfigError, match="has no effect with sampler = 'local' and async_level = 0"):
        train(lamps_model, tmp_path / "run", settings(async_level=0))
    assert not (tmp_path / "run").exists()
    policy = LocalPolicy(load_model(lamps_model, device="cpu"), settings().sampling, grammar=lamps().language.grammar)
    elsewhere = settings(async_level=0, max_steps=1)
    train(lamps_model, tmp_path / "elsewhere", elsewhere, sampler=policy)
    assert steps(tmp_path / "elsewhere")[0]["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_a_resumed_run_trains_on_what_was_rolled_out_ahead(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    def press(record: Any) -> None:
        if record["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, tmp_path / "run", on_step=press)
    train(lamps_model, tmp_path / "run", resume=True)
    compare_runs(ahead, tmp_path / "run")


def test_a_run_resumed_from_an_older_checkpoint_is_the_same(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    """What a kill behind step 3 leaves: the checkpoint of step 2, whose next groups are of the weights of step 1."""

    def fail(record: Any) -> None:
        if record["step"] == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(lamps_model, tmp_path / "run", on_step=fail)
    train(lamps_model, tmp_path / "run", resume=True)
    compare_runs(ahead, tmp_path / "run")


def test_a_rollout_that_nobody_takes_any_more_ends_and_closes_its_environments() -> None:
    """The second Ctrl-C, and any error of training, waited for all of it."""
    begun, played, closed = threading.Event(), list[int](), list[int]()

    class Waiting(Lamps):
        def step(self, action: str) -> Observation:
            if threading.current_thread() is not threading.main_thread():
                played.append(1)
                begun.set()
                for _ in range(1000):  # 10 seconds, in each of 16 episodes
                    time.sleep(0.01)
            return super().step(action)

        def close(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                closed.append(1)

    spec = replace(lamps(turns=1), make=Waiting)
    rollouts = StepRollouts(spec, spec.policy("gold"), settings(), frozenset())
    rollouts.take(1, 0, spec.grader(), scheduled=False)
    assert begun.wait(60)
    rollouts.close()
    assert (len(played), len(closed)) == (1, 16)


def compare_runs(one: Path, other: Path) -> None:
    left, right = load_file(one / "final" / "model.safetensors"), load_file(other / "final" / "model.safetensors")
    assert all(torch.equal(left[name], right[name]) for name in left)
    records = [
        [{name: value for name, value in record.items() if name not in NOT_COMPARED} for record in steps(run)]
        for run in (one, other)
    ]
    assert records[0] == records[1]
