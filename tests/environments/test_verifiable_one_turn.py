"""Rows and reward functions, or rows and a judge, make an environment in one call."""

import json
import time

import pytest

import gradus
from gradus.core import ConfigError, Episode
from gradus.environments.verifiable.from_rows import one_turn
from gradus.rollouts import roll_out

ROWS = [{"question": f"What comes after {n}?", "answer": str(n + 1), "number": n} for n in range(200)]


def exact(row, text: str) -> float:
    return float(text.strip() == row["answer"])


def episodes(spec, policy: str, count: int = 12) -> list[Episode]:
    return roll_out(spec, spec.policy(policy), spec.tasks("held-out", count)).episodes


def mean(played: list[Episode]) -> float:
    return sum(each.reward.value for each in played if each.reward and each.reward.value is not None) / len(played)


def test_a_judge_grades_and_gold_answers_teach() -> None:
    spec = one_turn(ROWS, judge=exact)
    assert spec.teacher == "gold"
    assert mean(episodes(spec, "gold")) == 1.0
    assert mean(episodes(spec, "random")) < 0.5
    assert 0 < mean(episodes(spec, "noisy:0.5")) < 1
    assert all(each.metrics["true_reward"] == each.reward.value for each in episodes(spec, "random") if each.reward)


def test_reward_functions_see_the_columns_and_may_be_weighted() -> None:
    def close(prompts, completions, number, **columns):
        return [float(text == str(n + 1)) for text, n in zip(completions, number, strict=True)]

    def short(completions, **columns):
        return [float(len(text) < 5) for text in completions]

    spec = one_turn(ROWS, [(close, 2.0), short], name="after")
    assert spec.default_grader == "rewards"
    assert mean(episodes(spec, "gold")) == 3.0
    silent = episodes(spec, "silence")[
        0
    ]  # rewards without a judge are the truth, and no other figure stands beside them
    assert silent.metrics == {"true_reward": 1.0}


def test_a_judge_that_raises_or_returns_nonsense_is_an_error_of_that_answer() -> None:
    def picky(row, text: str) -> float:
        return float("nan") if row["number"] % 2 else 1 / 0

    played = episodes(one_turn(ROWS, judge=picky), "gold")
    assert all(each.reward and each.reward.value is None for each in played)
    errors = {(each.reward.error or "").partition(" (")[0] for each in played if each.reward}
    assert errors == {
        "the judge raised ZeroDivisionError: division by zero",
        "the judge returned nan; expected a finite number",
    }


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match=r"rewards=.*judge="):
        one_turn(ROWS)
    with pytest.raises(ConfigError, match="has a column 'question', only topic"):
        one_turn([{"topic": "a"}], judge=exact)
    with pytest.raises(ConfigError, match="answer_format"):
        one_turn(ROWS, judge=exact, answer_format="answer")


def test_a_judge_that_hangs_does_not_hang_the_rollout() -> None:
    spec = one_turn(ROWS, judge=lambda row, text: time.sleep(30) or 1.0, time_limit=0.1)
    assert "took more than 0.1 s" in (episodes(spec, "gold", 1)[0].reward.error or "")


def test_rows_without_rewards_are_what_a_file_of_them_is(tmp_path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    file, memory = gradus.load_environment(tmp_path / "rows.jsonl"), gradus.load_environment(ROWS)
    for spec in (file, memory):
        (episode,) = gradus.roll_out(spec, "gold", episodes=1).episodes
        assert (episode.reward.value, episode.metrics["true_reward"]) == (3.0, 1.0)
    assert file.make().system_prompt == memory.make().system_prompt != ""
    assert (list(file.graders), file.default_grader) == (list(memory.graders), memory.default_grader)
    with pytest.raises(ConfigError, match=r"row 2 has no answer, as 1 of its \d+ rows; leave these rows out"):
        gradus.load_environment([ROWS[0], {"question": "And now?"}, *ROWS])
    questions = [{"question": row["question"]} for row in ROWS]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    for data in (tmp_path / "questions.jsonl", questions):
        spec = gradus.load_environment(data)
        assert (spec.teacher, list(spec.graders), spec.make().system_prompt) == (None, ["answers"], "")
        with pytest.raises(ConfigError, match="has no answers; its columns are question"):
            spec.grader().rewards([])
        paid = gradus.load_environment(data, rewards=[lambda completions, **_: [0.5] * len(completions)])
        assert gradus.roll_out(paid, "random", episodes=1).episodes[0].reward.value == 0.5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rewards": exact}, "rewards are a list"),
        ({"rewards": [(exact, 1, 2)]}, "a pair of one and its weight"),
        ({"rewards": [(exact, "much")]}, "the weight of a reward is a number, got 'much'"),
        ({"rewards": ["corectness"]}, "did you mean correctness"),
    ],
)
def test_what_is_no_reward_or_judge_is_said(wrong, said) -> None:
    with pytest.raises(ConfigError, match=said):
        one_turn(ROWS, **wrong)
