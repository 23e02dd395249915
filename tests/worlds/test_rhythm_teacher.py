"""The planner and the teacher: what is learned is true, calibrated, and enough to plan on."""

import itertools
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gradus.core import ConfigError, Episode, Observation, PolicyError, Request, Task
from gradus.rollouts import roll_out
from gradus.stats import paired_difference
from gradus_worlds.rhythm import RhythmEnvironment, load
from gradus_worlds.rhythm.persons import BELIEFS, arrays, belief_targets, sample_profile
from gradus_worlds.rhythm.posterior import _PLACES, Posterior
from gradus_worlds.rhythm.scripted import SessionPolicy
from gradus_worlds.rhythm.tables import ACTIONS, MODIFIERS, STEPS
from gradus_worlds.rhythm.teacher import BayesSession
from gradus_worlds.rhythm.world import Situation, draw_start, effect_tables, plan, transition

SPEC = load()


@cache
def prior_draws() -> tuple[tuple[Episode, ...], BayesSession]:
    """250 weeks of the teacher with persons from the prior, and what it believed at their ends."""
    tasks = [Task(environment="rhythm", seed=5_000_000 + i, options={"persons": "continuous"}) for i in range(250)]
    session = BayesSession([(0, i) for i in range(250)])
    episodes = roll_out(SPEC, SessionPolicy("bayes", lambda _: session), tasks, max_concurrent=250).episodes
    session.learn([Request(row=i, observation=e.final) for i, e in enumerate(episodes) if e.final is not None])
    return tuple(episodes), session


def drawn(posterior: Posterior, row: int, draws: int) -> np.ndarray:
    """Draws of the belief targets of one row, (draws, 3)."""
    rng = np.random.default_rng(row)
    mass = np.exp(posterior._log_modifiers[row])
    mass /= mass.sum(axis=1, keepdims=True)
    modifiers = np.stack([rng.choice(_PLACES, draws, p=column) for column in mass], axis=1)
    modifiers += rng.uniform(-0.5, 0.5, modifiers.shape) * (_PLACES[1] - _PLACES[0])
    share = np.exp(posterior._log_cloud[row])
    chosen = rng.choice(len(share), draws, p=share / share.sum())
    return belief_targets(posterior._cloud[row, chosen], modifiers)


def test_intervals_of_80_percent_cover_72_to_88_percent() -> None:
    episodes, session = prior_draws()
    truth = np.array([list(episode.outcome["beliefs"].values()) for episode in episodes])
    draws = np.stack([drawn(session.posterior, row, 400) for row in range(250)])
    low, high = np.quantile(draws, [0.1, 0.9], axis=1)
    covered = ((low <= truth) & (truth <= high)).mean(axis=0)
    assert (covered >= 0.72).all(), covered
    assert (covered <= 0.88).all(), covered


def test_the_teacher_knows_whom_it_has_by_the_end() -> None:
    mae = [
        SPEC.metrics(e)["belief_mae"]
        for e in roll_out(SPEC, SPEC.policy("bayes"), SPEC.tasks("in-distribution", 40)).episodes
    ]  # type: ignore[misc]
    assert np.mean([value for value in mae if value is not None]) <= 0.10


def test_knowing_the_person_pays() -> None:
    """At least a quarter of what can be gained over random play is gained by knowing the person alone."""
    tasks = SPEC.tasks("in-distribution", 40)
    clairvoyant, blind, random = (
        np.array([e.env_return for e in roll_out(SPEC, SPEC.policy(name), tasks).episodes])
        for name in ("clairvoyant", "profile-blind", "random")
    )
    assert (clairvoyant - blind).mean() / (clairvoyant - random).mean() >= 0.25


def test_the_blind_teacher_knows_nobody_and_can_try_any_action() -> None:
    tasks = [SPEC.train_task(index) for index in range(24)]

    def weeks(name: str) -> list[Episode]:
        return list(roll_out(SPEC, SPEC.policy(name), tasks).episodes)

    def done(episodes: list[Episode]) -> list[str]:
        return [turn.action_data["action_type"] for each in episodes for turn in each.turns]

    stating, some = weeks("profile-blind+random"), done(weeks("profile-blind+random:0.3"))
    assert done(weeks("profile-blind")) == done(stating)
    assert "deep_work" not in done(stating)
    assert some.count("deep_work") / len(some) == pytest.approx(0.03, abs=0.02)
    stated = np.array([[turn.action_data["belief"] for turn in each.turns] for each in stating])  # (24, 28, 3)
    truth = np.array([list(each.outcome["beliefs"].values()) for each in stating])
    assert abs(np.corrcoef(stated.mean(axis=1).ravel(), truth.ravel())[0, 1]) < 0.4
    assert len(np.unique(stated)) == 10
    assert abs(stated.mean() - 0.5) < 0.03


def test_inference_alone_pays_the_reflex() -> None:
    tasks = SPEC.tasks("in-distribution", 40)
    believer, reflex = (
        [e.reward.value for e in roll_out(SPEC, SPEC.policy(name), tasks).episodes if e.reward]
        for name in ("heuristic+bayes", "heuristic")
    )
    result = paired_difference(believer, reflex)
    assert result.low > 0


def test_the_teacher_reads_no_more_than_the_line_shows() -> None:
    """Rounding everything to what stands in the text changes no answer, and it has no environment to look into."""
    from gradus_worlds.rhythm.text import shown_figures

    environment = RhythmEnvironment()
    observation = environment.reset(seed=5)
    exact, rounded = BayesSession([(0, 5)]), BayesSession([(0, 5)])
    while not observation.terminated:
        data = json.loads(json.dumps(observation.data))
        shown = shown_figures(observation.data)
        data |= {"meters": shown.meters, "anomaly": shown.anomalies, "reward": shown.reward}
        data["change"] = None
        data["history"] = [{k: v for k, v in r.items() if k in ("action", "event")} for r in data["history"]]
        answer = exact.act([Request(row=0, observation=observation)])[0].text
        assert rounded.act([Request(row=0, observation=replace(observation, data=data))])[0].text == answer
        observation = environment.step(answer)


def test_a_row_is_played_the_same_alone_and_among_others() -> None:
    tasks = SPEC.tasks("in-distribution")[:6]
    together = roll_out(SPEC, SPEC.policy("bayes"), tasks).episodes
    alone = roll_out(SPEC, SPEC.policy("bayes"), tasks, max_concurrent=1).episodes
    assert [[t.action for t in e.turns] for e in together] == [[t.action for t in e.turns] for e in alone]


@pytest.mark.parametrize("left", [1, 3])
def test_the_planner_finds_the_best_plan_of_a_short_week(left: int) -> None:
    """Against every sequence of the last slots, tried one by one."""
    persons = [sample_profile(seed) for seed in range(4)]
    weights, modifiers = arrays(persons)
    effects, meters = effect_tables(modifiers), np.stack([draw_start(seed) for seed in range(4)])
    step = STEPS - left
    situation = Situation(step=step, meters=meters, weights=weights, effects=effects)
    best = plan(situation, horizon=left, beam=1000)
    for row in range(4):
        values: dict[tuple[int, ...], float] = {}
        for sequence in itertools.product(range(len(ACTIONS)), repeat=left):
            level, total = meters[row], 0.0
            for depth, action in enumerate(sequence):
                level, _, reward, _ = transition(level, weights[row], effects[row, (step + depth) % 4, action])
                total += float(reward)
            values[sequence] = total
        optimum = max(values.values())
        assert max(v for s, v in values.items() if s[0] == best[row]) == pytest.approx(optimum, abs=1e-9)


def test_a_prior_posterior_believes_in_the_middle() -> None:
    posterior = Posterior([(0,), (1,)])
    np.testing.assert_allclose(posterior.belief([0, 1]), 0.5, atol=0.02)
    mean, variance = posterior.modifier_moments([0])
    np.testing.assert_allclose(mean, 0.0, atol=1e-9)
    assert variance.shape == (1, len(MODIFIERS))
    assert (variance > 0.3).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [("bayes:nonsense", "reasoning"), ("constant:fly", "constant:ACTION"), ("profile-blind+random:2", "from 0 to 1")],
)
def test_wrong_arguments_of_policies_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SPEC.policy(name)


def test_what_the_teacher_states_agrees_with_what_it_says() -> None:
    """Probabilities add up to 1, the likeliest action is worth as much as the one it takes, and asking twice teaches nothing."""

    episodes = roll_out(SPEC, SPEC.policy("bayes"), [SPEC.train_task(index) for index in range(6)]).episodes
    keys = [(0, index) for index in range(len(episodes))]
    asked, told = BayesSession(keys), BayesSession(keys)
    for turn in range(STEPS):
        shown = [Observation(text=each.turns[turn].observation, data=each.turns[turn].data) for each in episodes]
        requests = [Request(row=row, observation=each) for row, each in enumerate(shown)]
        stated = asked.distributions(requests)
        again = asked.distributions(requests)
        assert again == stated
        actions = asked.act(requests)
        assert [each.text for each in actions] == [each.text for each in told.act(requests)]
        for spans, action in zip(stated, actions, strict=True):
            assert [each.span for each in spans] == [*BELIEFS, "action"]
            assert all(abs(sum(each.probabilities) - 1) < 1e-9 for each in spans)
            words = action.text.split()
            for each, word in zip(spans, words, strict=True):
                chosen = each.probabilities[each.answers.index(word)]
                assert chosen == pytest.approx(max(each.probabilities), abs=1e-6)


def test_weeks_at_several_steps_are_refused() -> None:
    """The step of the first week was taken for all."""
    (episode,) = roll_out(SPEC, SPEC.policy("bayes"), [SPEC.train_task(0)]).episodes
    shown = [Observation(text=turn.observation, data=turn.data) for turn in episode.turns[:2]]
    requests = [Request(row=row, observation=each) for row, each in enumerate(shown)]
    with pytest.raises(PolicyError, match=r"steps \[0, 1\]"):
        BayesSession([(0, 0), (0, 1)]).act(requests)
