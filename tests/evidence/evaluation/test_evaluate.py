"""What an evaluation promises: the same seeds, nothing dropped in silence, the same bytes for the same call."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from fakes import WORDS, echo
from garden import SPEC, Garden

from gradus.core import ConfigError, Observation, child_rng
from gradus.evidence.evaluation import compare, compare_seeds, evaluate
from gradus.evidence.reports.score_tables import score_tables
from gradus.policies.scripted import FunctionPolicy
from gradus.stats import mean_interval, paired_difference, pass_at_k


def _policies(*names, spec=SPEC):
    return {name: spec.policy(name) for name in names}


def _small():
    policies = _policies("random", "feeder", "teacher")
    return evaluate(SPEC, policies, episodes=30, graders=["honest", "gullible"], power=0.02)


small = pytest.fixture(scope="module")(_small)


def test_figures_are_those_of_the_episodes(small):
    record = small.to_json()["conditions"]["main"]["policies"]["teacher"]
    episodes = small.episodes["main"]["teacher"]
    expected = mean_interval([episode.reward.value for episode in episodes])
    assert record["reward"] == {
        "mean": pytest.approx(expected.mean, abs=1e-6),
        "low": pytest.approx(expected.low, abs=1e-6),
        "high": pytest.approx(expected.high, abs=1e-6),
    }
    assert record["true_reward"]["mean"] == pytest.approx(np.mean([e.env_return for e in episodes]), abs=1e-6)
    assert record["env_reward"] == record["true_reward"]  # of an environment whose aim is its own return
    assert record["components"]["wellbeing"]["mean"] == pytest.approx(
        np.mean([e.reward.components["wellbeing"] for e in episodes]), abs=1e-6
    )
    assert len(record["curves"]["belief_error"]) == 8


def test_pairs_are_differences_on_the_same_seeds(small):
    document = small.to_json()["conditions"]["main"]
    a, b = (small.episodes["main"][name] for name in ("teacher", "feeder"))
    assert [e.task for e in a] == [e.task for e in b]
    expected = paired_difference([e.reward.value for e in a], [e.reward.value for e in b])
    stored = document["pairs"]["teacher - feeder"]["reward"]
    assert stored["mean"] == pytest.approx(expected.mean, abs=1e-6)
    assert (stored["low"], stored["p"], stored["decision"]) == (None, None, "too few")  # 30 tasks
    assert (stored["wins"], stored["episodes"], stored["units"]) == (expected.wins, 30, 30)
    assert stored["episodes_needed"] >= 40
    assert set(document["pairs"]) == {"feeder - random", "teacher - random", "teacher - feeder"}


def test_another_grader_grades_the_same_episodes_without_playing(small):
    document = small.to_json()
    again = document["graders"]["gullible"]["conditions"]["main"]["policies"]["random"]
    first = document["conditions"]["main"]["policies"]["random"]
    assert again["true_reward"] == first["true_reward"]
    assert set(again["components"]) == {"adaptation", "belief"}
    alone = evaluate(SPEC, _policies("random"), conditions=["main"], graders=["gullible"], episodes=30).to_json()
    assert alone["conditions"]["main"]["policies"]["random"] == again


def test_the_same_call_gives_the_same_bytes(small):
    again = _small()
    assert json.dumps(again.to_json(), allow_nan=False) == json.dumps(small.to_json(), allow_nan=False)
    other = evaluate(SPEC, _policies("random"), conditions=["main"], episodes=30, seed=1)
    ours, theirs = (each.to_json()["conditions"]["main"]["policies"]["random"] for each in (small, other))
    assert ours["reward"] != theirs["reward"]


def test_a_condition_with_fewer_seeds_gives_all_it_has(small):
    assert small.to_json()["conditions"]["main"]["episodes"] == 30
    assert small.to_json()["conditions"]["thirsty"]["episodes"] == 20
    with pytest.raises(ConfigError, match="has 60 seeds, got episodes = 61"):
        evaluate(SPEC, _policies("random"), episodes=61)
    with pytest.raises(ConfigError, match="has 20 seeds"):
        evaluate(SPEC, _policies("random"), conditions=["thirsty"], episodes=21)


def test_clusters_of_the_condition_reach_the_intervals(small):
    document = small.to_json()["conditions"]
    assert (document["thirsty"]["clustered"], document["main"]["clustered"]) == (True, False)
    pair = document["thirsty"]["pairs"]["teacher - feeder"]["reward"]
    assert (pair["episodes"], pair["units"], pair["decision"]) == (20, 5, "too few")
    record = document["thirsty"]["policies"]["teacher"]["reward"]
    episodes = small.episodes["thirsty"]["teacher"]
    expected = mean_interval([e.reward.value for e in episodes], clusters=[e.task.seed % 5 for e in episodes])
    assert (record["low"], record["high"]) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_all_pairs_of_all_conditions_are_corrected_together():
    names = ("random", "feeder", "teacher")
    alone = evaluate(SPEC, _policies(*names[1:]), conditions=["main"], episodes=60).to_json()
    all_pairs = evaluate(SPEC, _policies(*names), episodes=60).to_json()
    one, six = (each["conditions"]["main"]["pairs"]["teacher - feeder"]["reward"] for each in (alone, all_pairs))
    assert (one["level"], six["level"]) == (0.95, round(1 - 0.05 / 6, 6))
    assert six["low"] < one["low"] < one["high"] < six["high"]
    assert six["p"] == pytest.approx(min(1.0, 6 * one["p"]), abs=1e-5)


def test_one_episode_has_a_mean_and_no_interval():
    document = evaluate(SPEC, _policies("random", "feeder"), conditions=["main"], episodes=1).to_json()
    record = document["conditions"]["main"]
    assert record["policies"]["random"]["reward"]["low"] is None
    assert record["policies"]["random"]["reward"]["mean"] is not None
    assert record["pairs"]["feeder - random"]["reward"]["p"] is None


class _Breaking(Garden):
    """Breaks on the third day of every fourth seed."""

    def step(self, action: str) -> Observation:
        if self._seed % 4 == 0 and self._day == 2 and action.endswith("feed"):
            raise ConnectionError("the watering can fell")
        return super().step(action)


def test_failed_episodes_are_counted_shown_and_leave_their_pair():
    spec = replace(SPEC, make=_Breaking)
    evaluation = evaluate(spec, _policies("constant:water", "feeder", spec=spec), conditions=["main"], episodes=20)
    record = evaluation.to_json()["conditions"]["main"]
    feeder = record["policies"]["feeder"]
    assert (feeder["episodes"], feeder["failed"], feeder["failures"]) == (20, 5, {"step: ConnectionError": 5})
    assert record["policies"]["constant:water"]["failed"] == 0
    assert record["pairs"]["feeder - constant:water"]["reward"]["episodes"] == 15
    table = _table(evaluation.to_json(), "All figures, main")
    assert {row.name: row.cells[-1].text for row in table.rows} == {"feeder": "20, 5 failed", "constant:water": "20"}
    (row,) = [row for row in table.rows if row.name == "feeder"]
    assert row.cells[0].note.endswith(", 5 missing")  # a mean over survivors says so in its cell
    assert feeder["first_failure"].startswith("step: ConnectionError: the watering can fell (test_evaluate.py:")
    assert "first_failure" not in record["policies"]["constant:water"]
    assert "feeder: 5 of 20 episodes failed: step: ConnectionError (5); the first said step:" in table.caption


def test_what_the_policy_broke_counts_with_its_reward_and_is_shown():
    """A table said 1.000 with "4 of 9 failed" below."""

    class Fragile(_Breaking):
        def step(self, action: str) -> Observation:
            try:
                return super().step(action)
            except ConnectionError as error:
                raise ValueError(str(error)) from error

    spec = replace(SPEC, make=Fragile)
    evaluation = evaluate(spec, _policies("constant:water", "feeder", spec=spec), conditions=["main"], episodes=20)
    record = evaluation.to_json()["conditions"]["main"]
    feeder = record["policies"]["feeder"]
    assert (feeder["episodes"], feeder["failed"], feeder["broken"]) == (20, 0, 5)
    assert record["pairs"]["feeder - constant:water"]["reward"]["episodes"] == 20
    rewards = [episode.reward.value for episode in evaluation.episodes["main"]["feeder"]]
    assert feeder["reward"]["mean"] == pytest.approx(np.mean(rewards), abs=1e-6)
    assert min(rewards) == rewards[0] <= 0
    table = _table(evaluation.to_json(), "All figures, main")
    assert {row.name: row.cells[-1].text for row in table.rows}["feeder"] == "20, 5 broken"
    assert "the model broke 5 of 20 episodes" in table.caption


def test_a_grader_that_cannot_grade_is_counted_not_zero():
    def reward(episodes):
        if any(e.task.seed == 3 for e in episodes):
            raise ValueError("no ink")
        return SPEC.graders["honest"].compute(episodes)

    spec = replace(SPEC, graders={"honest": replace(SPEC.graders["honest"], compute=reward)})
    record = evaluate(spec, _policies("feeder"), conditions=["main"], episodes=10).to_json()["conditions"]["main"]
    assert record["policies"]["feeder"]["ungraded"] == 1
    assert "no ink" in record["policies"]["feeder"]["first_failure"]
    whole = evaluate(SPEC, _policies("feeder"), conditions=["main"], episodes=10)
    values = [e.reward.value for e in whole.episodes["main"]["feeder"] if e.task.seed != 3]
    assert record["policies"]["feeder"]["reward"]["mean"] == pytest.approx(np.mean(values), abs=1e-6)


def test_chosen_pairs_and_their_errors():
    evaluation = evaluate(
        SPEC, _policies("random", "feeder"), conditions=["main"], episodes=5, pairs=[("random", "feeder")]
    )
    assert list(evaluation.to_json()["conditions"]["main"]["pairs"]) == ["random - feeder"]
    with pytest.raises(ConfigError, match="'teacher' was not rolled out"):
        compare(SPEC, evaluation.episodes, pairs=[("teacher", "random")])
    with pytest.raises(ConfigError, match="at least one policy"):
        evaluate(SPEC, {})
    with pytest.raises(ConfigError, match="unknown condition 'mars'"):
        evaluate(SPEC, _policies("random"), conditions=["mars"])


def test_stored_episodes_compare_to_the_same_document(small):
    again = compare(SPEC, small.episodes, graders=["honest", "gullible"], power=0.02, seeds=[0])
    assert again == small.to_json()


def test_pass_at_k_is_the_share_of_choices_that_hold_a_pass():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                choices = list(combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def guess():
    """Says one of echo's words, drawn by the episode's own key."""
    return FunctionPolicy("guess", lambda seen, script: child_rng(*script.start.key).choice(WORDS))


def test_several_samples_of_a_task_are_one_unit():
    spec = echo()
    policies = {"random": guess(), "teacher": spec.policy("gold")}
    once = evaluate(spec, policies, episodes=20)
    result = evaluate(spec, policies, episodes=20, samples=4, pass_k=[1, 2, 4])
    (condition,) = result.episodes
    episodes = result.episodes[condition]["random"]
    assert [each.turns for each in episodes[::4]] == [each.turns for each in once.episodes[condition]["random"]]
    record = result.to_json()["conditions"][condition]["policies"]["random"]
    tasks = [[each.reward.value for each in episodes[start : start + 4]] for start in range(0, 80, 4)]
    means = [sum(values) / 4 for values in tasks]
    assert record["reward"]["mean"] == pytest.approx(np.mean(means))
    interval = mean_interval(means)
    assert (record["reward"]["low"], record["reward"]["high"]) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert record["pass@1"]["mean"] == pytest.approx(record["true_reward"]["mean"], abs=1e-6)
    assert record["pass@4"]["mean"] == pytest.approx(np.mean([max(values) for values in tasks]), abs=1e-6)
    assert record["pass@1"]["mean"] < record["pass@2"]["mean"] < record["pass@4"]["mean"] < 1
    pair = result.to_json()["conditions"][condition]["pairs"]["teacher - random"]
    assert pair["reward"]["episodes"] == 20
    assert pair["pass@4"]["mean"] == pytest.approx(1 - record["pass@4"]["mean"], abs=1e-6)
    table = _table(result.to_json(), f"All figures, {condition}")
    assert all(row.cells[table.header.index("pass@4") - 1].note for row in table.rows)
    with pytest.raises(ConfigError, match="between 1 and samples"):
        evaluate(spec, policies, episodes=2, pass_k=[2])


def test_seeds_that_agree_come_to_what_one_of_them_comes_to(small):
    """Under either grader, clustered or not."""
    seeds = {c: {name: {0: each, 1: each} for name, each in of.items()} for c, of in small.episodes.items()}
    graders = ["honest", "gullible"]
    several, one = (
        compare_seeds(SPEC, seeds, seeds=[0, 1], graders=graders),
        compare(SPEC, small.episodes, graders=graders),
    )
    for records, plain in (
        (several["conditions"], one["conditions"]),
        (several["graders"]["gullible"]["conditions"], one["graders"]["gullible"]["conditions"]),
    ):
        for condition in ("main", "thirsty"):
            figures, expected = (each[condition]["pairs"]["feeder - random"]["reward"] for each in (records, plain))
            for key in ("mean", "low", "high", "p", "decision"):
                assert figures[key] == pytest.approx(expected[key], abs=2e-6)
            figures, expected = (each[condition]["policies"]["feeder"]["reward"] for each in (records, plain))
            for key in ("mean", "low", "high"):
                assert figures[key] == pytest.approx(expected[key], abs=2e-6)


def test_each_seeds_mean_is_over_what_it_has_and_pairs_are_over_the_tasks_of_all():
    result = evaluate(echo(), {"random": guess()}, episodes=4)
    (condition,) = result.episodes

    def rewarded(*values):
        given = zip(result.episodes[condition]["random"], values, strict=False)
        return [replace(each, reward=replace(each.reward, value=value)) for each, value in given]

    policies = {
        "a": {0: rewarded(1.0, 2.0, None, 4.0), 1: rewarded(3.0, 2.0, 1.0, 0.0)},
        "b": {0: rewarded(0.0, 2.0, 5.0, 1.0), 1: rewarded(1.0, 1.0, 1.0, 1.0)},
        "short": {0: rewarded(0.0, 0.0, 0.0, 0.0), 1: rewarded(0.0, 0.0, 0.0)},
    }
    record = compare_seeds(echo(), {condition: policies}, seeds=[0, 1])["conditions"][condition]
    assert record["policies"]["a"]["reward"]["by_seed"] == pytest.approx([7 / 3, 6 / 4], abs=1e-6)
    assert record["pairs"]["b - a"]["reward"]["by_seed"] == pytest.approx([-4 / 3, -2 / 4], abs=1e-6)
    assert [record["pairs"][pair]["reward"]["episodes"] for pair in ("b - a", "short - a")] == [4, 3]


def test_an_attempt_passes_if_its_true_reward_is_one_and_a_missing_one_is_not_counted():
    result = evaluate(echo(), {"random": guess()}, episodes=8, samples=2)
    (condition,) = result.episodes

    def passes(k, rewards, true_rewards):
        episodes = [
            replace(
                each,
                reward=replace(each.reward, value=rewards[place % 2]),
                metrics={**each.metrics, "true_reward": true_rewards[place % 2]},
            )
            for place, each in enumerate(result.episodes[condition]["random"])
        ]
        document = compare(echo(), {condition: {"a": episodes}}, graded=True, pass_k=[k])
        return document["conditions"][condition]["policies"]["a"][f"pass@{k}"]["mean"]

    assert passes(1, (1.0, 1.0), (0.9, 0.9)) == 0.0
    assert passes(1, (0.0, 0.9), (None, None)) == 0.0
    assert passes(1, (1.0, 0.0), (None, None)) == 0.5
    assert passes(1, (1.0, None), (None, None)) == 1.0
    assert passes(2, (1.0, None), (None, None)) is None


def _table(results, title):
    return next(table for table in score_tables(results) if table.title == title)


def test_an_evaluation_that_looks_stops_with_the_episodes_of_one_that_does_not():
    policies = _policies("feeder", "teacher")
    whole = evaluate(SPEC, policies, conditions=["main"], episodes=60)
    early = evaluate(SPEC, policies, conditions=["main"], episodes=60, until_decided=True)
    looks = early.to_json()["until_decided"]
    assert looks["tasks"] < looks["of"] == 60
    for name, episodes in early.episodes["main"].items():
        assert episodes == whole.episodes["main"][name][: looks["tasks"]]
    kept = len(early.episodes["main"]["teacher"])
    plain = evaluate(SPEC, policies, conditions=["main"], episodes=kept).to_json()["conditions"]["main"]["pairs"]
    looked = early.to_json()["conditions"]["main"]["pairs"]["teacher - feeder"]["reward"]
    assert looked["low"] < plain["teacher - feeder"]["reward"]["low"]  # five looks cost width
    assert looked["p"] >= plain["teacher - feeder"]["reward"]["p"]


def test_looks_need_one_condition_and_two_policies():
    with pytest.raises(ConfigError, match="one condition"):
        evaluate(SPEC, _policies("feeder", "teacher"), episodes=10, until_decided=True)
    with pytest.raises(ConfigError, match="at least two policies"):
        evaluate(SPEC, _policies("feeder"), conditions=["main"], episodes=10, until_decided=True)
