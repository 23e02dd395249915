"""Rows and reward functions, or rows and a judge, make an environment in one call."""

import time

import pytest

from gradus.core import ConfigError, Episode
from gradus.environments.verifiable import one_turn
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
    assert episodes(spec, "silence")[0].metrics["true_reward"] == 0.0


def test_rows_without_answers_have_rewards_and_no_teacher() -> None:
    spec = one_turn([{"prompt": f"Say {n}"} for n in range(300)], [lambda completions, **_: [1.0] * len(completions)])
    assert (spec.teacher, spec.audit.gold) == (None, None)
    assert episodes(spec, "random")[0].metrics["true_reward"] == 1.0


def test_the_answer_format_is_how_gold_answers_are_written() -> None:
    spec = one_turn(ROWS, judge=lambda row, text: float(text == f"[{row['answer']}]"), answer_format="[{answer}]")
    assert mean(episodes(spec, "gold")) == 1.0


def test_a_judge_that_raises_or_returns_nonsense_is_an_error_of_that_answer() -> None:
    def picky(row, text: str) -> float:
        return float("nan") if row["number"] % 2 else 1 / 0

    played = episodes(one_turn(ROWS, judge=picky), "gold")
    assert all(each.reward and each.reward.value is None for each in played)
    errors = {each.reward.error for each in played if each.reward}
    assert errors == {
        "the judge raised ZeroDivisionError: division by zero",
        "the judge returned nan; expected a finite number",
    }


def test_no_held_out_question_is_trained_on() -> None:
    spec = one_turn(ROWS * 2, judge=exact)
    trained = set()
    for index in range(400):
        task = spec.train_task(index)
        trained.add(spec.make().reset(seed=task.seed, **task.options).text)
    held = {spec.make().reset(seed=task.seed, **task.options).text for task in spec.tasks("held-out")}
    assert held
    assert not trained & held


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match=r"rewards=.*judge="):
        one_turn(ROWS)
    with pytest.raises(ConfigError, match="row 1 has no question"):
        one_turn([{"text": "a"}], judge=exact)
    with pytest.raises(ConfigError, match="answer_format"):
        one_turn(ROWS, judge=exact, answer_format="answer")


def test_a_judge_that_hangs_does_not_hang_the_rollout() -> None:
    spec = one_turn(ROWS, judge=lambda row, text: time.sleep(30) or 1.0, time_limit=0.1)
    assert "took more than 0.1 s" in (episodes(spec, "gold", 1)[0].reward.error or "")
