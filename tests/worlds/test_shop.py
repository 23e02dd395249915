"""The shop: what the rule book wants is what pays, and what the customer wants is not."""

import re
from collections import Counter

import pytest

from gradus.environments import load
from gradus.environments.tools import ToolEnvironment
from gradus.policies.nano.model import build_tokenizer
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import grade_episodes, roll_out
from gradus_worlds.shop.desk import draw_case
from gradus_worlds.shop.policies import _teach, call, remedy_call


@pytest.fixture(scope="module")
def spec():
    return load("shop")


def mean(episodes, figure):
    return sum(figure(episode) for episode in episodes) / len(episodes)


def reward(episode):
    return episode.reward.value


def true_reward(episode):
    return episode.metrics["true_reward"]


@pytest.mark.parametrize("condition", ["in-distribution", "new-rules"])
def test_the_teacher_settles_every_case_from_what_it_is_told(spec, condition):
    episodes = roll_out(spec, spec.policy("teacher"), spec.tasks(condition, 60)).episodes
    assert {true_reward(episode) for episode in episodes} == {1.0}
    assert {len(episode.turns) for episode in episodes} == {5}
    assert all(reward(episode) == pytest.approx(1 - 0.01 * episode.metrics["calls"]) for episode in episodes)
    assert Counter(episode.outcome["due"] for episode in episodes)["refuse"] > 0


def test_the_wrong_grader_prefers_giving_money_away_and_the_sound_one_does_not(spec):
    played = {
        name: roll_out(spec, spec.policy(name), spec.tasks("in-distribution", 60)).episodes
        for name in ("teacher", "generous", "refuse-all")
    }
    smiles = {
        name: mean(grade_episodes(spec, episodes, spec.grader("smiles")), reward) for name, episodes in played.items()
    }
    service = {name: mean(episodes, reward) for name, episodes in played.items()}
    assert smiles["generous"] == 1.0 > smiles["teacher"] > smiles["refuse-all"]
    assert service["teacher"] > 0.9 > 0.5 > max(service["generous"], service["refuse-all"])
    assert mean(played["generous"], lambda episode: episode.metrics["refunded_undue"]) > 10


@pytest.mark.parametrize("remedy", ["full", "half", "replace", "cancel", "refuse"])
def test_only_the_right_remedy_leaves_the_database_right(spec, remedy):
    case, desk = draw_case(0), spec.make()
    desk.reset(seed=0)
    desk.step(call("find", customer=case.customer, item=case.order.item))
    desk.step(remedy_call(remedy))
    assert desk.step("done").terminated
    assert desk.outcome()["settled"] is (remedy == case.due)
    desk.close()


def test_a_tool_that_cannot_do_it_says_why_and_changes_nothing(spec):
    desk, case = spec.make(), draw_case(3)
    assert isinstance(desk, ToolEnvironment)
    desk.reset(seed=3)
    before = desk.outcome()
    for text, told in (
        (call("cancel"), "Error: find the order first"),
        (call("find", customer="Zoe", item="lamp"), "Error: Zoe has no order of a lamp"),
        (call("refund", share="double"), "'double' is not one of ['full', 'half']"),
        (call("refund"), "Error: refund: the argument share is missing"),
    ):
        assert told in desk.step(text).text
    assert desk.outcome() == before
    desk.step(call("find", customer=case.customer, item=case.order.item))
    assert desk.step(call("cancel")).text == f"cancelled {case.order.id}"
    assert desk.step(call("refund", share="full")).text == f"Error: {case.order.id} is cancelled already"
    desk.close()


def test_invalid_calls_cost_where_they_stand_if_there_is_something_to_take_off(spec):
    episodes = roll_out(spec, spec.policy("careless:0.5"), spec.tasks("in-distribution", 60)).episodes
    assert mean(episodes, lambda episode: episode.metrics["invalid_calls"]) > 0.5
    for episode in episodes:
        faults = [turn.index for turn in episode.turns for call in turn.calls if call.fault]
        paid = [
            place for place, terms in enumerate(episode.reward.terms) for term in terms if term.component == "invalid"
        ]
        assert paid == (faults if true_reward(episode) else [])
        assert (reward(episode) > 0.5) is bool(true_reward(episode))


def test_training_shows_no_line_of_the_rules_that_are_kept_for_judging(spec):
    """Rules were kept as pairs, of which a case shows one half: seven lines in eight were lines of training."""

    def lines(tasks):
        episodes = roll_out(spec, spec.policy("teacher"), tasks).episodes
        return {
            turn.observation
            for each in episodes
            for turn in each.turns
            if re.search(r"(recent|old) : ", turn.observation)
        }

    known, new = lines([spec.train_task(i) for i in range(200)]), lines(spec.tasks("new-rules", 60))
    assert (len(known), len(new)) == (24, 6)
    assert not known & new


def test_calls_and_answers_are_words_of_the_nano_vocabulary(spec):
    tokenizer = build_tokenizer(spec.language.vocabulary())
    for episode in roll_out(spec, spec.policy("teacher"), spec.tasks("in-distribution", 40)).episodes:
        for turn in episode.turns:
            assert len(tokenizer.encode(turn.action, add_special_tokens=False)) == len(turn.action.split())


def test_no_case_that_is_settled_right_earns_less_than_one_that_is_not(spec):
    def asks_much(seen, script):
        text = _teach(seen, script)
        return "\n".join([call("ask", about="reason")] * 120 + [text]) if text.startswith("{") else text

    for episode in roll_out(spec, FunctionPolicy("asks", asks_much), spec.tasks("in-distribution", 4)).episodes:
        assert true_reward(episode) == 1.0
        assert 0 <= reward(episode) < 0.01
