"""Promises are held against figures, and a figure that is not there is neither met nor missed."""

import pytest
from pydantic import ValidationError

from gradus.runs.recipe.promises import Promise, check_promises
from gradus.runs.stages.runner import promise_lines

RESULTS = {
    "v3": {
        "conditions": {
            "main": {
                "policies": {"grpo": {"reward": {"mean": 0.7, "low": 0.6, "high": 0.8}, "belief_mae": {"mean": 0.1}}},
                "pairs": {"grpo - sft": {"true_reward": {"mean": 0.5, "low": -0.1, "high": 1.1}}},
            }
        }
    }
}


@pytest.mark.parametrize(
    ("promise", "met"),
    [
        ({"policy": "grpo", "above": 0.65}, True),
        ({"policy": "grpo", "bound": "low", "above": 0.65}, False),
        ({"policy": "grpo", "above": 0.7}, False),
        ({"policy": "grpo", "figure": "belief_mae", "below": 0.1}, True),
        ({"policy": "grpo", "figure": "belief_mae", "below": 0.2}, True),
        ({"policy": "grpo", "figure": "belief_mae", "below": 0.05}, False),
        ({"pair": "grpo - sft", "figure": "true_reward", "bound": "low", "above": 0}, False),
        ({"policy": "nobody", "above": 0}, None),
        ({"policy": "grpo", "grader": "v9", "above": 0}, None),
    ],
)
def test_judging(promise, met):
    result = check_promises([Promise(text="t", condition="main", **promise)], RESULTS, "v3")
    assert result[0]["met"] is met


@pytest.mark.parametrize("wrong", [{}, {"policy": "a", "pair": "a - b", "above": 0}, {"policy": "a"}])
def test_a_claim_that_says_nothing_is_refused(wrong):
    with pytest.raises(ValidationError):
        Promise(text="t", condition="c", **wrong)


def test_a_missed_promise_and_a_missed_aim_are_told():
    pair = {"condition": "main", "pair": "grpo - sft", "figure": "true_reward", "bound": "low", "above": 0}
    judged = check_promises([Promise(text="it got better", **pair)], RESULTS, "v3")
    assert [line.strip() for line in promise_lines(judged)] == [
        "promises of the recipe: 0 of 1 kept",
        "promise missed: it got better (−0.100, wanted above 0)",
    ]
    aims = check_promises([Promise(text="it got better", aim=True, **pair)], RESULTS, "v3")
    assert [line.strip() for line in promise_lines(aims)] == ["aim not reached: it got better (−0.100, wanted above 0)"]
