"""Rhythm under Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from gradus_worlds.rhythm.gymnasium import RhythmGym
from gradus_worlds.rhythm.shell import RhythmWorld
from gradus_worlds.rhythm.tables import ACTIONS, DAYS, EVENTS, SLOTS


@pytest.mark.parametrize("options", [{}, {"belief": True}, {"persons": "discrete"}, {"render_mode": "ansi"}])
def test_the_checker_has_nothing_to_say(options: dict[str, object]) -> None:
    environment = gymnasium.make("gradus/Rhythm-v0", **options)
    check_env(environment.unwrapped)  # warnings are errors in these tests
    environment.close()


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
