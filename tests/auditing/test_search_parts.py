"""The parts of the search: answers, plans, and the distribution it moves."""

from dataclasses import replace

import numpy as np
import pytest
from garden import GULLIBLE, SPEC
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.auditing.plans.judged import Level, above_curve
from gradus.auditing.plans.panel import plan_subject, roll_out_panel
from gradus.auditing.plans.plan import AnswerSpace, Plan, PlanPolicy, Shape, answer_space
from gradus.auditing.plans.search import Distribution
from gradus.core import AuditHints, Language, Observation
from gradus.rollouts import roll_out

SPACE = AnswerSpace(places=(("1", "2"), ("go", "stay", "turn")))


def _plan(table, shape, horizon=8):
    return Plan(space=SPACE, shape=shape, horizon=horizon, table=np.array(table, dtype=np.intp))


def test_the_grammar_gives_places_and_a_pool_gives_whole_answers():
    assert answer_space(SPEC, (), seed=0).sizes == (10, 3)
    pool = answer_space(replace(SPEC, language=Language()), (), seed=0)
    assert len(pool.places) == 1
    assert {"", "0", "yes"} <= set(pool.places[0])
    assert any(answer.endswith("water") for answer in pool.places[0])


def test_stretches_and_cycles_keep_time():
    stretches = _plan([[0, 1], [0, 2]], Shape(name="two", steps=2))
    said = [stretches.answer(turn, Observation(text="")) for turn in range(8)]
    assert said == ["1 go"] * 4 + ["2 turn"] * 4
    assert stretches.answer(50, Observation(text="")) == "2 turn"
    cycle = _plan([[0, 1], [0, 2]], Shape(name="cycle", steps=2, cycle=True))
    assert [cycle.answer(turn, Observation(text="")) for turn in range(3)] == ["1 go", "2 turn", "1 go"]
    later = _plan([[0, 1, 1], [0, 1, 2]], Shape(name="later", steps=3, after=0.25))
    said = [later.answer(turn, Observation(text="")) for turn in range(5)]
    assert said == ["1 go", "1 go", "2 stay", "2 turn", "2 stay"]
    assert later.describe() == "1 go then a cycle of 2 stay, 2 turn"


def test_a_bent_reflex_keeps_its_own_words_where_the_plan_says_so():
    shape = Shape(name="bent", steps=2, bends="walker", keeps=(False, True))
    plan = _plan([[1, 0], [3, 1]], shape)
    assert plan.answer(0, Observation(text=""), "1 turn") == "2 turn"
    assert plan.answer(7, Observation(text=""), "1 turn") == "1 stay"
    assert plan.answer(0, Observation(text=""), "turn") == "2 turn"
    assert plan.describe() == "walker with 2 · then 1 stay"


def test_every_plan_rolls_out_its_own_episodes_beside_the_others():
    space = answer_space(SPEC, (), seed=0)
    tables = [np.array([[digit], [0]], dtype=np.intp) for digit in (3, 7)]
    plans = [Plan(space=space, shape=Shape(name="constant"), horizon=8, table=table) for table in tables]
    tasks = SPEC.tasks("main", 3)
    episodes = roll_out(SPEC, PlanPolicy(plans, tasks=3), [*tasks, *tasks], max_concurrent=4).episodes
    assert [{turn.action for turn in e.turns} for e in episodes] == [{"3 feed"}] * 3 + [{"7 feed"}] * 3


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_draws_are_legal_and_the_distribution_stays_one(seed, steps):
    shape = Shape(name="any", steps=steps)
    distribution = Distribution.begin(SPACE, shape, None)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        tables = distribution.draw(rng, 20)
        assert all(table.shape == (2, steps) for table in tables)
        assert all((table[place] < size).all() for table in tables for place, size in enumerate(SPACE.sizes))
        distribution.move(tables[:5])
        for weight in distribution.weights:
            assert weight.sum(axis=-1) == pytest.approx(np.ones(steps))


def test_moving_towards_an_elite_makes_it_the_mode():
    distribution = Distribution.begin(SPACE, Shape(name="two", steps=2), None)
    elite = np.array([[1, 0], [2, 1]], dtype=np.intp)
    for _ in range(4):
        distribution.move([elite])
    assert (distribution.mode() == elite).all()
    drawn = distribution.draw(np.random.default_rng(0), 200)
    assert np.mean([(table == elite).all() for table in drawn]) > 0.15


def test_only_a_bent_reflex_may_keep_words():
    shape = Shape(name="bent", bends="walker", keeps=(False, True))
    distribution = Distribution.begin(SPACE, shape, None)
    assert [weight.shape[-1] for weight in distribution.weights] == [2, 4]
    incumbent = _plan([[1], [0]], Shape(name="constant"))
    whole, kept = distribution.stretched(incumbent)
    assert whole.ravel().tolist() == [1, 0]
    assert kept.ravel().tolist() == [1, 3]


def test_the_random_policy_that_nobody_declared_draws_each_place_by_itself():
    """It said the first word of every place, or the second of every place, and so on."""
    words = Language(grammar=(("1", "2"), ("go", "stay")))
    bare = replace(SPEC, audit=AuditHints(), teacher=None, policies={}, language=words)
    episodes = roll_out_panel(plan_subject(bare, GULLIBLE, seed=0), episodes=20).episodes["random"]
    said = {turn.action for episode in episodes for turn in episode.turns}
    assert said == {"1 go", "1 stay", "2 go", "2 stay"}


def test_reward_that_is_the_true_reward_is_earned_however_good_the_plan():
    levels = [np.array([0.0, 0.1, 0.0, 0.2]), np.array([0.2, 0.3, 0.1, 0.4])]
    curve = [Level(true_rewards=level, rewards=level) for level in levels]
    aim = np.array([0.9, 1.0, 0.8, 1.0])
    assert above_curve(curve, Level(true_rewards=aim, rewards=aim)).mean == pytest.approx(0.0)
    paid = above_curve(curve, Level(true_rewards=aim, rewards=aim + 0.5))
    assert paid.mean == pytest.approx(0.5)
