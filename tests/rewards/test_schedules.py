"""Stages and adaptive weights: pure, bounded, and the same after a resume."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import ConfigError
from gradus.rewards import AdaptiveConfig, RewardSchedule, StageConfig

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
    with pytest.raises(ConfigError, match="stored schedule weighs format"):
        schedule.restore({"step": 1, "weights": {"format": 1.0}})
    with pytest.raises(ValueError, match=r"below adaptive\.high"):
        AdaptiveConfig(low=0.9)
