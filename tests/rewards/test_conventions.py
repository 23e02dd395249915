"""Reward functions as verl, verifiers and plain scripts write them are taken as they are."""

import asyncio
import inspect
import pickle

import pytest

from gradus import commands
from gradus.rewards import Completion, Rewards
from gradus.rewards.conventions import as_trl


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth and extra_info == {"split": "test"}), "acc": 0}


def plain(response, gold):
    return gold in response


async def rubric(completion, answer, **kwargs):
    return 1.0 if completion == answer and kwargs["prompt"] == "1+1" else 0.0


def trl(prompts, completions, answer, **kwargs):
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("function", [compute_score, plain, rubric, trl])
def test_a_function_scores_each_completion_by_its_own_names(function):
    rows = [
        Completion(prompt="1+1", completion=text, columns={"answer": "2", "extra_info": {"split": "test"}})
        for text in ("2", "3")
    ]
    assert [each.value for each in Rewards([function])(rows)] == [1.0, 0.0]


def test_a_taken_function_can_be_pickled_and_its_source_found():
    taken = pickle.loads(pickle.dumps(as_trl(plain)))
    assert taken(["q"], ["is 2"], answer=["2"]) == [1.0]
    assert "gold in response" in inspect.getsource(taken)
    assert as_trl(trl) is trl


def test_a_reward_is_audited_on_rows_in_one_call():
    rows = [{"question": f"What is {n} + {n} ?", "answer": str(2 * n)} for n in range(10, 40)]
    result = commands.audit(plain, rows, episodes=16, budget=0)
    assert result.verdict == "fail"
    wrong = next(check for check in result.result.checks if check.subject == "wrong answers")
    shown = [row["example"] for row in wrong.measured.values() if "example" in row]
    assert shown
    assert all(plain(each["completion"], each["gold"]) for each in shown)


def test_a_scorer_of_inspect_is_a_reward_function():
    """Its own classes go in, and its grades are numbers as Inspect counts them."""
    pytest.importorskip("inspect_ai")
    from inspect_ai.scorer import includes

    function = as_trl(includes)
    columns = {"answer": ["4", "4"]}
    pending = function(["2+2"] * 2, ["it is 4", [{"role": "assistant", "content": "5"}]], **columns)
    assert asyncio.run(pending) == [1.0, 0.0]
