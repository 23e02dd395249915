"""Groups that are rolled out one step ahead: by which weights, with which ratios, and over kills."""

from __future__ import annotations

import gzip
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Lamps, lamps
from short_runs import Stopped, ctrl_c_after, grpo_config, lines, same_weights, stop_after, train, without_clock

from gradus.core import ConfigError, Observation
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.training.config import GrpoConfig
from gradus.training.step_rollouts import StepRollouts


def settings(**changes: Any) -> GrpoConfig:
    base = {"max_steps": 5, "lr": 1e-2, "checkpoint_every": 2, "store_every": 1, "async_level": 1}
    return grpo_config(**{**base, "correction": "truncate", **changes})


def answers(folder: Path, step: int) -> str:
    return gzip.decompress((folder / "episodes" / f"step-{step:06d}.jsonl.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def ahead(lamps_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead") / "run"
    train(lamps_model, folder, settings())
    return folder


def test_groups_are_of_the_weights_one_step_before(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    records = lines(ahead)
    assert [record["weights_age"] for record in records] == [0, 1, 1, 1, 1]
    assert records[0]["logp_diff_max"] < 1e-4
    assert all(record["logp_diff_max"] > 1e-3 for record in records[1:])
    for record in records:
        assert record["seconds"]["waited"] >= 0
        assert record["seconds"]["overlapped"] >= 0
    assert records[0]["seconds"]["overlapped"] == 0.0
    train(lamps_model, tmp_path / "run", settings(async_level=0, correction=None))
    plain = lines(tmp_path / "run")
    assert [record["weights_age"] for record in plain] == [0] * 5
    assert answers(ahead, 1) == answers(tmp_path / "run", 1)  # the same weights and keys
    assert records[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=1e-5)
    assert answers(ahead, 3) != answers(tmp_path / "run", 3)


def test_older_samples_are_weighted_by_the_sampler_that_drew_them(
    ahead: Path, lamps_model: Path, tmp_path: Path
) -> None:
    """Read as if they were of the present weights, they would have a ratio of 1, no weight, and another gradient."""
    first, *late = lines(ahead)
    assert first["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert first["mismatch_ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert all(record["mismatch_ratio_max"] > 1.01 for record in late)
    assert all(record["mismatch_kl"] > 1e-5 for record in late)
    assert all(record["ratio_max"] == pytest.approx(1.0, abs=1e-5) for record in late)  # to the weights of the update
    clipped = settings(correction=None, old_logprobs="sampler", max_steps=2)
    train(lamps_model, tmp_path / "clipped", clipped)
    other = lines(tmp_path / "clipped")
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
    assert lines(tmp_path / "elsewhere")[0]["mismatch_ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_a_resumed_run_trains_on_what_was_rolled_out_ahead(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(lamps_model, tmp_path / "run", settings(), on_step=ctrl_c_after(2))
    train(lamps_model, tmp_path / "run", settings(), resume=True)
    compare_runs(ahead, tmp_path / "run")


def test_a_run_resumed_from_an_older_checkpoint_is_the_same(ahead: Path, lamps_model: Path, tmp_path: Path) -> None:
    """What a kill behind step 3 leaves: the checkpoint of step 2, whose next groups are of the weights of step 1."""
    with pytest.raises(Stopped):
        train(lamps_model, tmp_path / "run", settings(), on_step=stop_after(3))
    train(lamps_model, tmp_path / "run", settings(), resume=True)
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
    assert same_weights(one, other)
    assert without_clock(lines(one)) == without_clock(lines(other))
