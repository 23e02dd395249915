"""``reasoning-gym:NAME`` as an environment: its items, its scores, its errors."""

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra suites (pip install reasoning-gym)")

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.interop.suites.naming import list_suite
from gradus.rollouts import roll_out


@pytest.fixture(scope="module")
def legs() -> EnvironmentSpec:
    return environments.load("reasoning-gym:leg_counting")


def test_all_data_sets_are_listed() -> None:
    names = list_suite("reasoning-gym")
    assert len(names) >= 105
    assert "chain_sum" in names
    assert "composite" not in names  # its data sets cannot be given as options


def test_gold_gets_everything_and_silence_nothing(legs: EnvironmentSpec) -> None:
    for policy, low, high in (("gold", 1.0, 1.0), ("silence", 0.0, 0.0), ("noisy:0.5", 0.2, 0.9)):
        episodes = roll_out(legs, legs.policy(policy), legs.tasks("held-out", 20)).episodes
        values = [each.reward.value for each in episodes if each.reward and each.reward.value is not None]
        assert len(values) == 20
        assert low <= sum(values) / 20 <= high


def test_options_stand_behind_a_question_mark() -> None:
    spec = environments.load("reasoning-gym:chain_sum?max_terms=2&max_digits=1")
    assert len(spec.make().reset(seed=0).text) < 100
    assert spec.name == "reasoning-gym:chain_sum?max_terms=2&max_digits=1"


def test_an_exception_of_a_grader_is_an_error_of_that_answer() -> None:
    spec = environments.load("reasoning-gym:prime_factorization")
    environment = spec.make()
    environment.reset(seed=0)
    assert environment.step("<answer> a × b </answer>").reward is None
    assert "score_answer of prime_factorization" in environment.outcome()["error"]
    environment.reset(seed=1)
    gold = environment.outcome()["answer"]
    assert environment.step(f"<answer> {gold} </answer>").reward == 1.0


def test_training_and_evaluation_questions_differ(legs: EnvironmentSpec) -> None:
    def questions(tasks):
        return {legs.make().reset(seed=task.seed, **task.options).text for task in tasks}

    trained = questions([legs.train_task(index) for index in range(200)])
    held = questions(legs.tasks("held-out", 100)) | questions(legs.tasks("in-distribution", 100))
    assert not trained & held


def test_a_question_that_comes_again_is_one_unit_of_the_interval(legs: EnvironmentSpec) -> None:
    episodes = roll_out(legs, legs.policy("gold"), legs.tasks("held-out", 60)).episodes
    questions = [episode.turns[0].observation for episode in episodes]
    assert len(set(questions)) < 60
    cluster = legs.conditions["held-out"].cluster
    assert [cluster(episode) for episode in episodes] == questions


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(ConfigError, match="no data set 'legs'"):
        environments.load("reasoning-gym:legs")
    with pytest.raises(ConfigError, match="makes no tasks"):
        environments.load("reasoning-gym:chain_sum?no_such_option=1")
    with pytest.raises(ConfigError, match="no data set ''"):
        environments.load("reasoning-gym")
