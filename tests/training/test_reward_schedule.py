"""Stages and adaptive weights in the GRPO loop: applied, written down, and the same after a resume, bit for bit."""

from pathlib import Path

import pytest
from short_runs import Stopped, grpo_config, lines, same_weights, stop_after, train

from gradus import environments
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rewards import AdaptiveConfig, Rewards, RewardSchedule, StageConfig, grader_of

SPEC = environments.load("arithmetic:digits=1")


def first(completions, **columns) -> list[float]:
    """Anything below 0.2 that differs from text to text, so that every group has something to learn from."""
    return [0.2 * (sum(map(ord, text)) % 97) / 97 for text in completions]


def second(completions, **columns) -> list[float]:
    """As ``first``, and another number."""
    return [0.2 * (sum(map(ord, text[::2])) % 89) / 89 for text in completions]


GRADER = grader_of(Rewards([(first, 2.0), (second, 0.5)]), name="numbers")
STAGES = [
    StageConfig(name="form", steps=2, weights={"second": 1.0}, lr=2e-2),
    StageConfig(name="sums", carry_optimizer=False),
]


def schedule(stages: list[StageConfig] = STAGES) -> RewardSchedule:
    return RewardSchedule(GRADER.weights, stages=stages, adaptive=AdaptiveConfig())


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = NanoConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32, context=64)
    return make_nano(tmp_path_factory.mktemp("nano") / "model", SPEC.language.vocabulary(), shape)


def records(folder: Path) -> list[dict]:
    keys = ("step", "stage", "weights", "lr", "reward_mean", "components", "grad_norm", "loss")
    return [{key: line.get(key) for key in keys} for line in lines(folder)]


def staged(model: Path, folder: Path, stages: list[StageConfig] = STAGES, *, every: int = 1, **options) -> None:
    """Train with these stages."""
    config = grpo_config(
        max_steps=4, groups=2, lr=1e-2, checkpoint_every=every, sampling=SamplingConfig(max_new_tokens=6)
    )
    train(model, folder, config, SPEC, grader=GRADER, schedule=schedule(stages), **options)


@pytest.fixture(scope="module")
def whole(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    staged(nano, folder)
    return folder


def test_stages_and_weights_are_paid_and_written_down(whole: Path) -> None:
    told = records(whole)
    assert [line["stage"] for line in told] == ["form", "form", "sums", "sums"]
    assert all(line["grad_norm"] > 0 for line in told)  # there is something to learn, so weights do move
    assert told[0]["weights"] == {"first": 0.0, "second": 1.0}
    assert told[2]["weights"] == dict(GRADER.weights)
    assert [line["lr"] for line in told] == [2e-2, 2e-2, 1e-2, 1e-2]
    # Both stay below 0.3, so weights grow, in the first stage and anew in the second; what has no weight in a stage keeps none.
    assert told[1]["weights"] == {"first": 0.0, "second": 1.2}
    assert told[3]["weights"] == {"first": 2.4, "second": 0.6}


# 2 is cut exactly between two stages; with a checkpoint every second step, 3 goes back to that cut.
@pytest.mark.parametrize(("every", "killed"), [(1, 2), (2, 3)])
def test_a_resumed_schedule_is_the_unbroken_one(
    every: int, killed: int, nano: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        staged(nano, tmp_path, every=every, on_step=stop_after(killed))
    staged(nano, tmp_path, every=every, resume=True)
    assert records(tmp_path) == records(whole)
    assert same_weights(whole, tmp_path)


def test_a_carried_optimizer_makes_another_run(nano: Path, whole: Path, tmp_path: Path) -> None:
    staged(nano, tmp_path, [STAGES[0], StageConfig(name="sums")])
    assert records(tmp_path)[:3] == records(whole)[:3]
    assert not same_weights(whole, tmp_path)
