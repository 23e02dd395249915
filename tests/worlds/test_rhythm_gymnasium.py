"""Rhythm under Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gradus_worlds.rhythm.gymnasium
from gradus.core import ConfigError
from gradus_worlds.rhythm.gymnasium import RhythmGym
from gradus_worlds.rhythm.shell import RhythmWorld
from gradus_worlds.rhythm.tables import ACTIONS, DAYS, EVENTS, SLOTS


@pytest.mark.parametrize("options", [{}, {"belief": True}, {"persons": "discrete"}, {"render_mode": "ansi"}])
def test_the_checker_has_nothing_to_say(options: dict[str, object]) -> None:
    environment = gymnasium.make("gradus/Rhythm-v0", **options)
    check_env(environment.unwrapped)  # warnings are errors in these tests
    environment.close()


def test_it_can_be_named_by_its_module_and_registered_twice() -> None:
    gradus_worlds.rhythm.gymnasium.register()
    gymnasium.register_envs(gradus_worlds.rhythm.gymnasium)
    environment = gymnasium.make("gradus_worlds.rhythm.gymnasium:gradus/Rhythm-v0")
    assert environment.spec is not None
    assert environment.spec.id == "gradus/Rhythm-v0"


def test_a_week_is_the_week_of_the_world() -> None:
    environment = gymnasium.make("gradus/Rhythm-v0")
    world = RhythmWorld()
    observation, _ = environment.reset(seed=11)
    record = world.reset(seed=11)
    rng = np.random.default_rng(0)
    done, steps = False, 0
    while not done:
        np.testing.assert_allclose(observation["meters"], record["meters"], atol=1e-6)
        np.testing.assert_allclose(observation["anomaly"], record["anomaly"], atol=1e-6)
        np.testing.assert_allclose(observation["change"], record["change"], atol=1e-6)
        named = (DAYS[observation["day"]], SLOTS[observation["slot"]], EVENTS[observation["event"]])
        assert named == (record["day"], record["slot"], record["active_event"])
        assert observation["steps_left"] == record["steps_left"]
        choice = int(rng.integers(len(ACTIONS)))
        observation, reward, done, truncated, info = environment.step(choice)
        record = world.step({"action_type": ACTIONS[choice], "belief": None})
        assert reward == record["reward"]
        assert not truncated
        assert set(info) == {"crashes"}  # and nothing of the person
        steps += 1
    assert steps == 28


@pytest.mark.parametrize("persons", ["discrete", "ood"])
def test_people_come_from_where_it_was_told(persons: str) -> None:
    def felt(step: Any, actions: Any) -> list[float]:
        return [float(step(action)) for action in actions]

    made, chosen, world = gymnasium.make("gradus/Rhythm-v0", persons=persons), RhythmGym(), RhythmWorld()
    made.reset(seed=11)
    chosen.reset(seed=11, options={"persons": persons})
    told = felt(lambda index: made.step(index)[1], range(10))
    assert told == felt(lambda index: chosen.step(index)[1], range(10))
    for kind, same in ((persons, True), ("continuous", False)):
        world.reset(seed=11, persons=kind)
        own = felt(lambda name: world.step({"action_type": name, "belief": None})["reward"], ACTIONS)
        assert (told == own) == same


def test_without_a_seed_people_differ_and_repeat_with_the_generator() -> None:
    def meet() -> list[float]:
        environment = gymnasium.make("gradus/Rhythm-v0")
        environment.reset(seed=1)
        environment.reset()
        first = float(environment.step(0)[1])
        environment.reset()
        return [first, float(environment.step(0)[1])]

    first, second = meet(), meet()
    assert first == second
    assert first[0] != first[1]


def test_a_stated_belief_changes_no_reward() -> None:
    plain = gymnasium.make("gradus/Rhythm-v0")
    stating = gymnasium.make("gradus/Rhythm-v0", belief=True)
    plain.reset(seed=3)
    stating.reset(seed=3)
    belief = np.array([0.1, 0.9, 0.5], np.float32)
    for index in range(10):
        assert plain.step(index)[1] == stating.step({"action_type": index, "belief": belief})[1]


def test_it_renders_what_a_model_reads() -> None:
    environment = gymnasium.make("gradus/Rhythm-v0", render_mode="ansi")
    environment.reset(seed=3)
    assert environment.render().startswith("mon morning V0.60 C0.65 P0.50 S0.55 K0.45")
    with pytest.raises(ConfigError, match="ansi"):
        gradus_worlds.rhythm.gymnasium.RhythmGym(render_mode="human")
