"""The world of Rhythm: its known figures, its laws, its noise, and its shell."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.core import ConfigError, EnvironmentFault
from gradus_worlds.rhythm import RhythmEnvironment
from gradus_worlds.rhythm.persons import (
    DISCRETE,
    NEUTRAL,
    Profile,
    arrays,
    belief_targets,
    sample_discrete,
    sample_ood,
    sample_profile,
)
from gradus_worlds.rhythm.tables import (
    ACTION_INDEX,
    ACTIONS,
    BASE,
    CRASH_BELOW,
    CRASH_PENALTY,
    EVENTS,
    METERS,
    MODIFIERS,
    REWARD_SCALE,
    SIGNATURE,
    STEPS,
)
from gradus_worlds.rhythm.world import draw_events, draw_noise, effect_tables, event_effects, felt_change, transition

PERSONS = {person.name: person for person in DISCRETE}


def anomaly(person: Profile, action: str, meter: str, level: float = 0.7) -> float:
    """A person's change minus a neutral person's, in the afternoon, all meters at ``level``."""
    meters = np.full(len(METERS), level)
    changes = [
        felt_change(meters, effect_tables(arrays([who])[1])[0, 1, ACTION_INDEX[action]]) for who in (person, NEUTRAL)
    ]
    return float((changes[0] - changes[1])[METERS.index(meter)])


@pytest.mark.parametrize(
    ("person", "action", "expected"),
    [
        ("introvert_morning", "socialize", -0.096),
        ("extrovert_night_owl", "socialize", 0.038),
        ("workaholic_stoic", "socialize", 0.0),
        ("workaholic_stoic", "deep_work", 0.06),
    ],
)
def test_known_vitality_anomalies(person: str, action: str, expected: float) -> None:
    assert anomaly(PERSONS[person], action, "vitality") == pytest.approx(expected, abs=0.002)


def test_deep_work_is_worth_1_57_to_the_workaholic() -> None:
    weights, modifiers = arrays([PERSONS["workaholic_stoic"]])
    assert weights[0, METERS.index("progress")] == pytest.approx(0.70)
    effects = effect_tables(modifiers)[:, 1, ACTION_INDEX["deep_work"]]
    _, _, reward, crashes = transition(np.full((1, 5), 0.7), weights, effects)
    assert reward[0] == pytest.approx(1.57, abs=0.005)
    assert crashes[0] == 0


def test_modifiers_change_signs_and_not_only_sizes() -> None:
    """Somewhere in [-1, 1] every modifier but resilience turns a whole action from good to bad."""
    for modifier in range(len(MODIFIERS) - 1):
        sums = (BASE + np.array([-1.0, 0.0, 1.0])[:, None, None, None] * SIGNATURE[modifier]).sum(axis=3)
        assert ((sums.min(axis=0) < 0) & (sums.max(axis=0) > 0)).any(), MODIFIERS[modifier]


@settings(max_examples=60)
@given(
    meters=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    seed=st.integers(0, 2**32),
    slot=st.integers(0, 3),
    action=st.integers(0, len(ACTIONS)),
    shock=st.floats(-0.3, 0.3),
)
def test_laws_of_a_step(meters: list[float], seed: int, slot: int, action: int, shock: float) -> None:
    weights, modifiers = arrays([sample_profile(seed)])
    before = np.array([meters])
    after, change, reward, crashes = transition(before, weights, effect_tables(modifiers)[:, slot, action], shock)
    assert (after >= 0).all()
    assert (after <= 1).all()
    assert crashes[0] == (after < CRASH_BELOW).sum()
    assert reward[0] == pytest.approx(REWARD_SCALE * float(weights[0] @ change[0]) - CRASH_PENALTY * crashes[0])
    assert ((before + change >= -1e-12) & (before + change <= 1 + 1e-12)).all()


def test_a_tired_person_gets_less_from_work() -> None:
    effects = effect_tables(arrays([NEUTRAL])[1])[0, 1, ACTION_INDEX["deep_work"]]
    gains = [felt_change(np.array([v, 0.5, 0.3, 0.5, 0.5]), effects)[2] for v in (0.15, 0.3, 0.5, 0.9)]
    assert gains[0] < gains[1] < gains[2] == pytest.approx(gains[3])


def test_noise_and_events_are_keyed_by_seed_alone() -> None:
    np.testing.assert_array_equal(draw_noise(5), draw_noise(5))
    assert not np.array_equal(draw_noise(5), draw_noise(6))
    assert draw_events(5).shape == (STEPS,)
    share = np.mean([draw_events(seed) > 0 for seed in range(400)])
    assert 0.08 < share < 0.12


def test_resilience_scales_what_an_event_does() -> None:
    quarrel = np.array([EVENTS.index("quarrel")] * 3)
    modifiers = np.zeros((3, len(MODIFIERS)))
    modifiers[:, MODIFIERS.index("event_resilience")] = (-1.0, 0.0, 1.0)
    felt = np.abs(event_effects(quarrel, modifiers)).sum(axis=1)
    assert felt[0] == pytest.approx(1.8 * felt[1])
    assert felt[2] == pytest.approx(0.2 * felt[1])


def test_persons_are_what_their_samplers_promise() -> None:
    weights, modifiers = arrays([sample_profile(seed) for seed in range(300)])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert (np.abs(modifiers) <= 1.0).all()
    _, beyond = arrays([sample_ood(seed) for seed in range(100)])
    assert ((np.abs(beyond) > 1.0).sum(axis=1) == 4).all()
    targets = belief_targets(weights, modifiers)
    assert (targets >= 0).all()
    assert (targets <= 1).all()
    np.testing.assert_allclose(targets.mean(axis=0), 0.5, atol=0.05)


def test_the_map_from_seed_to_discrete_person_is_scrambled() -> None:
    names = np.array([sample_discrete(seed).name for seed in range(600)])
    assert len(set(names)) == 3
    for remainder in range(3):
        _, counts = np.unique(names[remainder::3], return_counts=True)
        assert counts.min() > 40, "seed % 3 must say nothing about the person"


def records_of(actions: list[str], seed: int) -> list[dict]:
    environment = RhythmEnvironment()
    seen = [environment.reset(seed=seed), *(environment.step(name) for name in actions)]
    return [dict(each.data) for each in seen]


def test_the_same_seed_gives_the_same_week_and_plain_json() -> None:
    actions = [ACTIONS[index % 10] for index in range(STEPS)]
    first, second = (records_of(actions, 4) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert first[-1]["done"]
    assert not first[-2]["done"]
    assert [len(record["history"]) for record in first[:9]] == [0, 1, 2, 3, 4, 5, 6, 7, 7]


def test_the_environment_is_the_pure_world() -> None:
    person = sample_profile(12)
    records = records_of(["learn", "socialize", "sleep"], 12)
    weights, modifiers = arrays([person])
    effects, shocks = effect_tables(modifiers)[0], draw_noise(12) + event_effects(draw_events(12), modifiers)
    meters = np.array(records[0]["meters"])
    for step, name in enumerate(("learn", "socialize", "sleep")):
        meters, change, reward, _ = transition(meters, weights[0], effects[step, ACTION_INDEX[name]], shocks[step])
        np.testing.assert_allclose(records[step + 1]["meters"], meters, atol=3e-4)
        np.testing.assert_allclose(records[step + 1]["change"], change, atol=3e-4)
        assert records[step + 1]["reward"] == pytest.approx(float(reward), abs=5e-3)


def test_wrong_calls_say_what_was_expected() -> None:
    world = RhythmEnvironment()
    with pytest.raises(EnvironmentFault, match="call reset"):
        world.step("sleep")
    with pytest.raises(ConfigError, match="continuous, ood, discrete"):
        world.reset(seed=1, persons="martian")
    world.reset(seed=1)
    for _ in range(STEPS):
        world.step("whatever")
    with pytest.raises(EnvironmentFault, match="over"):
        world.step("sleep")


def test_typed_actions_are_the_answers_in_fields() -> None:
    spoken, typed = RhythmEnvironment(), RhythmEnvironment()
    spoken.reset(seed=1), typed.reset(seed=1)
    assert typed.step_typed({"action_type": "sleep", "belief": [0, 1, 0]}).data == spoken.step("0 9 0 sleep").data
    assert typed.step_typed({"action_type": "learn", "belief": None}).data == spoken.step("learn").data
    for wrong in ({"action_type": "fly"}, {"action_type": "sleep", "belief": [0.5, 2.0, 0.5]}, {"text": 5}):
        with pytest.raises(ValueError, match="RhythmAction"):
            typed.step_typed(wrong)
