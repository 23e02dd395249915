"""Stages and adaptive weights: pure, bounded, and the same after a resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import ConfigError
from gradus.rewards import AdaptiveConfig, RewardSchedule, StageConfig, adapt, load_rewards

WEIGHTS = {"correct": 2.0, "format": 0.5}
STAGES = [
    StageConfig(name="form", steps=2, weights={"format": 1.0}, lr=1e-3),
    StageConfig(name="sums", steps=3, carry_optimizer=False),
]


def test_stages_follow_each_other() -> None:
    schedule = RewardSchedule(WEIGHTS, stages=STAGES)
    plans = []
    for step in range(1, 8):
        plans.append(schedule.plan(step))
        schedule.observe(step, {"correct": 0.1, "format": 1.0})
    assert [plan.stage for plan in plans] == ["form"] * 2 + ["sums"] * 5
    assert plans[0].weights == {"correct": 0.0, "format": 1.0}
    assert plans[2].weights == WEIGHTS
    assert [plan.reset_optimizer for plan in plans] == [False, False, True, False, False, False, False]
    assert [plan.lr for plan in plans[:3]] == [1e-3, 1e-3, None]
    assert schedule.steps == 5
    assert RewardSchedule(WEIGHTS, stages=[STAGES[0], StageConfig(name="open")]).steps is None


def test_adaptive_weights_follow_success_and_start_anew_with_a_stage() -> None:
    schedule = RewardSchedule(WEIGHTS, stages=STAGES, adaptive=AdaptiveConfig())
    schedule.observe(1, {"correct": 0.0, "format": 0.1})
    assert schedule.plan(2).weights == {"correct": 0.0, "format": 1.2}  # what a stage does not pay stays unpaid
    schedule.observe(2, {"format": 0.1})
    assert schedule.plan(3).weights == WEIGHTS
    schedule.observe(3, {"correct": 0.1, "format": 0.9})
    assert schedule.plan(4).weights == pytest.approx({"correct": 2.4, "format": 0.4})
    schedule.observe(4, {"correct": None, "format": 0.5})
    assert schedule.plan(5).weights == pytest.approx({"correct": 2.4, "format": 0.4})


def test_adaptive_weights_know_the_range_of_a_component_and_leave_the_others() -> None:
    weights = {"correct": 2.0, "length": 1.0, "judge": 1.0, "other": 1.0, "rude": -1.0}
    ranges = {"length": (-1.0, 0.0), "judge": (1.0, 10.0)}
    schedule = RewardSchedule(weights, adaptive=AdaptiveConfig(), ranges=ranges)
    schedule.observe(1, {"correct": 0.5, "length": 0.0, "judge": 5.0, "other": 5.0, "rude": 0.95})
    assert schedule.plan(2).weights == {**weights, "length": 0.8}
    schedule.observe(2, {"correct": 0.5, "length": -0.9, "judge": 1.5, "other": -1.0, "rude": 0.05})
    assert schedule.plan(3).weights == pytest.approx({**weights, "length": 0.96, "judge": 1.2})
    with pytest.raises(ConfigError, match="weight of 'rude' is below 0"):
        RewardSchedule(weights, adaptive=AdaptiveConfig(components=("rude",)))


def test_reward_functions_say_their_range() -> None:
    judged = {"function": "judge", "settings": {"model": "m", "rubric": "r", "range": [1, 10]}}
    styled = {"function": "style", "settings": {"pattern": "so", "present": -1.0}}
    rewards = load_rewards(
        [{"function": "length", "settings": {"limit": 3}}, "repetition", "incremental_format", styled, judged]
    )
    assert rewards.ranges == {
        "length": (-1.0, 0.0), "repetition": (-1.0, 0.0), "incremental_format": (0.0, 1.0), "style": (-1.0, 0.0),
        "judge": (1.0, 10.0),
    }  # fmt: skip


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=60), st.floats(0.1, 5))
def test_weights_stay_within_bounds(rates: list[float | None], start: float) -> None:
    config = AdaptiveConfig(least=0.5, most=2.0)
    weight = start
    for rate in rates:
        weight = adapt(weight, rate, start, config)
        assert 0.5 * start <= weight <= 2.0 * start


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.data())
def test_a_resumed_schedule_is_the_unbroken_one(rates: list[float], data: st.DataObject) -> None:
    def fresh() -> RewardSchedule:
        return RewardSchedule(WEIGHTS, stages=STAGES, adaptive=AdaptiveConfig())

    unbroken, first = fresh(), fresh()
    cut = data.draw(st.integers(0, len(rates)))
    for step, rate in enumerate(rates, 1):
        unbroken.observe(step, {"correct": rate, "format": rate})
    for step, rate in enumerate(rates[:cut], 1):
        first.observe(step, {"correct": rate, "format": rate})
    resumed = fresh()
    resumed.restore(json.loads(json.dumps(first.state())))
    for step, rate in enumerate(rates[cut:], cut + 1):
        resumed.observe(step, {"correct": rate, "format": rate})
    assert resumed.state() == unbroken.state()
    assert resumed.plan(len(rates) + 1) == unbroken.plan(len(rates) + 1)


def test_wrong_use_is_refused() -> None:
    schedule = RewardSchedule(WEIGHTS)
    with pytest.raises(ConfigError, match="stands before step 1, got step 2"):
        schedule.plan(2)
    with pytest.raises(ConfigError, match="'tone'; the grader has correct, format"):
        RewardSchedule(WEIGHTS, adaptive=AdaptiveConfig(components=("tone",)))
    with pytest.raises(ConfigError, match="different names"):
        RewardSchedule(WEIGHTS, stages=[STAGES[0], STAGES[0]])
    with pytest.raises(ConfigError, match="'sums' has no reward"):
        RewardSchedule(WEIGHTS, stages=[StageConfig(name="sums", weights={"correct": 0.0})])
    with pytest.raises(ConfigError, match="'open' has no steps"):
        RewardSchedule(WEIGHTS, stages=[StageConfig(name="open"), *STAGES])
    with pytest.raises(ConfigError, match="other settings: adaptive was"):
        RewardSchedule(WEIGHTS, adaptive=AdaptiveConfig(up=2.0)).restore(
            RewardSchedule(WEIGHTS, adaptive=AdaptiveConfig()).state()
        )
    with pytest.raises(ConfigError, match="stored schedule weighs format"):
        schedule.restore({"step": 1, "weights": {"format": 1.0}})
    with pytest.raises(ValueError, match=r"below adaptive\.high"):
        AdaptiveConfig(low=0.9)
