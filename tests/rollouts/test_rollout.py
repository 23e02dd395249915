"""Groups at once."""

from dataclasses import replace

import pytest

from gradus.core import Action, ConfigError, Failure, GradingError, Reward, StopReason
from gradus.rollouts import roll_out


def test_a_group_shares_its_task_and_only_the_policy_differs(spec):
    result = roll_out(spec, spec.policy("random"), spec.tasks("main"), group_size=4)
    for group in result.groups:
        hidden = {episode.outcome["hidden"] for episode in group.episodes}
        assert len(hidden) == 1
        assert len({episode.turns[0].observation for episode in group.episodes}) == 1
    assert len({tuple(turn.action for turn in episode.turns) for episode in result.groups[0].episodes}) > 1


def test_the_same_call_gives_the_same_episodes(spec):
    first = roll_out(spec, spec.policy("random"), spec.tasks("main"), group_size=3, seed=5)
    again = roll_out(spec, spec.policy("random"), spec.tasks("main"), group_size=3, seed=5)
    other = roll_out(spec, spec.policy("random"), spec.tasks("main"), group_size=3, seed=6)
    assert first.groups == again.groups
    assert first.groups != other.groups


def test_concurrency_and_numbering_change_nothing(spec):
    tasks = spec.tasks("main")
    whole = roll_out(spec, spec.policy("random"), tasks, group_size=2)
    narrow = roll_out(spec, spec.policy("random"), tasks, group_size=2, max_concurrent=3)
    tail = roll_out(spec, spec.policy("random"), tasks[7:], group_size=2, first_group=7)
    assert whole.groups == narrow.groups
    assert list(whole.groups[7:]) == list(tail.groups)


def test_progress_counts_the_turns_of_episodes_that_are_under_way(spec):
    """An evaluation of long episodes said 0 of 20 until all of them ended."""
    told: list[float] = []
    roll_out(spec, spec.policy("bisect"), spec.tasks("main")[:4], progress=lambda done, of: told.append(done / of))
    assert told == sorted(told)
    assert told[0] == 0.0 < told[1] < 1.0 == told[-1]


def test_bisection_finds_every_digit_and_ends_as_terminated(spec):
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main")).episodes
    assert {episode.stop for episode in episodes} == {StopReason.TERMINATED}
    assert all(episode.reward.value == pytest.approx(episode.metrics["true_reward"]) for episode in episodes)


def test_the_turn_budget_cuts_and_says_so(spec):
    episodes = roll_out(spec, spec.policy("random"), spec.tasks("main"), max_turns=1).episodes
    for episode in episodes:
        result = episode.turns[0].env_reward == 1.0
        assert episode.stop is (StopReason.TERMINATED if result else StopReason.TURN_LIMIT)


def test_an_unreadable_answer_is_counted_and_costs_nothing_else(spec, scripted):
    policy = scripted("mumbler", lambda start, seen, memory: "eh")
    episode = roll_out(spec, policy, spec.tasks("main", 1)).episodes[0]
    assert [turn.valid for turn in episode.turns] == [False] * 6
    assert episode.turns[0].error == "expected a digit"


def test_an_environment_that_raises_ends_its_own_episode_only(spec, scripted):
    policy = scripted("sapper", lambda start, seen, memory: "explode" if start.task.seed == 3 else 4)
    episodes = roll_out(spec, policy, spec.tasks("main")).episodes
    failed = [episode for episode in episodes if episode.stop is StopReason.BROKEN]
    assert [episode.task.seed for episode in failed] == [3]
    failure = failed[0].failure
    assert (failure.stage, failure.type) == ("step", "RuntimeError")
    assert failure.message.startswith("boom (conftest.py:")
    lowest = min(0.0, *(episode.reward.value for episode in episodes if episode not in failed))
    assert failed[0].reward.value == sum(failed[0].reward.turn_rewards) == lowest


@pytest.mark.parametrize(
    ("grader", "value"),
    [({"range": (-2.0, 1.0)}, -2.0), ({"failed_reward": -0.5, "range": (-2.0, 1.0)}, -0.5), ({}, -3.0)],
)
def test_what_the_model_broke_gets_the_floor_of_the_range_or_the_least_so_far(spec, scripted, grader, value):
    policy = scripted("sapper", lambda start, seen, memory: "explode")
    graded = replace(spec.grader(), range=None)
    result = roll_out(spec, policy, spec.tasks("main"), grader=replace(graded, **grader), lowest=-3.0)
    assert {episode.reward.value for episode in result.episodes} == {value}
    assert {episode.metrics["true_reward"] is None for episode in result.episodes} == {False}


def test_a_lost_connection_and_a_broken_contract_are_no_fault_of_the_model(spec, scripted):
    class Lost(spec.make):
        def step(self, action):
            raise ConnectionError("gone") if action == "4" else KeyError(action)

    policy = scripted("four", lambda start, seen, memory: "4" if start.task.seed % 2 else "5")
    stops = {e.task.seed: e.stop for e in roll_out(replace(spec, make=Lost), policy, spec.tasks("main")).episodes}
    assert {stop for seed, stop in stops.items() if seed % 2} == {StopReason.FAILED}
    assert {stop for seed, stop in stops.items() if not seed % 2} == {StopReason.BROKEN}


def test_a_policy_that_fails_one_row_fails_one_row(spec, scripted):
    class Half(scripted):
        def act(self, requests):
            failure = Failure(stage="act", type="PolicyError", message="no answer")
            return [Action(failure=failure) if each.row == 0 else Action(text="4") for each in requests]

    episodes = roll_out(spec, Half("half", None), spec.tasks("main")).episodes
    assert episodes[0].stop is StopReason.FAILED
    assert all(episode.stop is not StopReason.FAILED for episode in episodes[1:])


def test_a_cut_answer_is_never_shown_as_finished(spec, scripted):
    class Cut(scripted):
        def act(self, requests):
            actions = super().act(requests)
            return [replace(action, stop=StopReason.TOKEN_LIMIT) for action in actions]

    policy = Cut("cut", spec.policy("bisect").function)
    episodes = roll_out(spec, policy, spec.tasks("main")).episodes
    assert {episode.stop for episode in episodes} == {StopReason.TOKEN_LIMIT}


def test_a_grader_that_raises_on_one_episode_loses_one_grade(spec):
    honest = spec.grader()

    def fussy(episodes):
        if any(episode.task.seed == 2 for episode in episodes):
            raise ValueError("not this one")
        return honest.compute(episodes)

    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main"), grader=replace(honest, compute=fussy)).episodes
    missing = [episode for episode in episodes if episode.reward.value is None]
    assert [episode.task.seed for episode in missing] == [2]
    assert "not this one" in missing[0].reward.error


def test_terms_that_do_not_sum_to_the_grade_are_refused(spec):
    honest = spec.grader()

    def liar(episodes):
        return [
            Reward(grader="liar", value=reward.value + 1, terms=reward.terms) for reward in honest.compute(episodes)
        ]

    with pytest.raises(GradingError, match="terms sum"):
        roll_out(spec, spec.policy("bisect"), spec.tasks("main"), grader=replace(honest, compute=liar))


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"max_concurrent": 0}, {"max_turns": 0}])
def test_senseless_arguments_say_what_was_expected(spec, wrong):
    with pytest.raises(ConfigError, match="at least 1"):
        roll_out(spec, spec.policy("bisect"), spec.tasks("main"), **wrong)


def test_an_entry_that_is_no_reward_costs_its_episode_alone(spec):
    grader = replace(spec.grader(), compute=lambda episodes: ["x", *[1.0] * (len(episodes) - 1)])
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main", 4), grader=grader).episodes
    assert [each.reward.value for each in episodes] == [None, 1.0, 1.0, 1.0]
    assert "returned a str" in episodes[0].reward.error
