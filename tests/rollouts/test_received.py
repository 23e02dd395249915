"""What an environment gives is checked when it comes: one episode fails and says why, or what was given is made plain."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradus.core import Action, ConfigError, EnvironmentFault, Observation, StopReason, Task
from gradus.rollouts import read_episodes, roll_out, write_episodes


def _of(spec: Any, seeds: range = range(1, 4), **methods: Any) -> Any:
    """The environment with other methods in the episode of seed 2 alone."""

    class Other(spec.make):
        def reset(self, *, seed=None, **options):
            self.odd = seed == 2
            begun = super().reset(seed=seed, **options)
            return methods["reset"]() if self.odd and "reset" in methods else begun

        def step(self, action):
            went = super().step(action)
            return methods["step"]() if self.odd and "step" in methods else went

        def outcome(self):
            return methods["outcome"]() if self.odd and "outcome" in methods else super().outcome()

    tasks = [Task(environment="guess", seed=seed) for seed in seeds]
    return roll_out(replace(spec, make=Other), spec.policy("random"), tasks).episodes


def _ended(**values: Any) -> Any:
    return lambda: Observation(**{"text": "x", "terminated": True, **values})


@pytest.mark.parametrize(
    ("methods", "stage", "message"),
    [
        ({"step": lambda: ("x", 1.0, True)}, "step", "step: expected an Observation, got tuple"),
        ({"reset": lambda: "go"}, "reset", "reset: expected an Observation, got a str, 'go'"),
        ({"step": _ended(text=5)}, "step", "the text that step gave is a int, 5; expected text"),
        ({"step": _ended(reward="much")}, "step", "gave the reward 'much'; expected a finite number"),
        ({"step": _ended(reward=float("nan"))}, "step", "gave the reward nan; expected a finite number"),
        ({"step": _ended(messages=("hello",))}, "step", "expected messages that are Messages"),
        ({"step": _ended(data={(1, 2): 3})}, "step", "keys must be str, int, float, bool or None, not tuple"),
    ],
)
def test_what_cannot_be_used_fails_its_own_episode_and_says_why(spec, tmp_path, methods, stage, message):
    """It killed all episodes with a TypeError, or was found out when the episodes were written."""
    episodes = _of(spec, **methods)
    assert [episode.stop is StopReason.FAILED for episode in episodes] == [False, True, False]
    failure = episodes[1].failure
    assert failure.stage == stage
    assert message in failure.message
    write_episodes(tmp_path / "e.jsonl", episodes, environment="guess")
    assert read_episodes(tmp_path / "e.jsonl").episodes == episodes


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"x": np.int64(3), "y": np.arange(2), "z": np.float32(0.5)}, {"x": 3, "y": [0, 1], "z": 0.5}),
        ({"s": {"b", "a"}, "o": object(), "n": [float("nan")]}, {"s": ["a", "b"], "o": "<object object>", "n": [None]}),
    ],
)
def test_values_of_other_kinds_are_made_plain(spec, tmp_path: Path, given, plain):
    episodes = _of(
        spec, outcome=lambda: given, step=_ended(data=given, reward=np.float32(0.5), terminated=np.bool_(True))
    )
    assert episodes[1].failure is None
    assert episodes[1].outcome == plain
    assert episodes[1].final.data == plain
    assert (episodes[1].turns[0].env_reward, episodes[1].final.terminated) == (0.5, True)
    write_episodes(tmp_path / "e.jsonl", episodes, environment="guess")
    assert read_episodes(tmp_path / "e.jsonl").episodes == episodes


def test_an_environment_that_cannot_be_made_says_so_and_the_others_are_closed(spec):
    closed = []

    class Brittle(spec.make):
        made = 0

        def __init__(self):
            super().__init__()
            Brittle.made += 1
            if Brittle.made == 2:
                raise OSError("no license")

        def close(self):
            closed.append(1)

    with pytest.raises(ConfigError, match="guess cannot be made: OSError: no license"):
        roll_out(replace(spec, make=Brittle), spec.policy("random"), spec.tasks("main"))
    assert closed == [1]


def test_a_group_that_begins_differently_says_in_what(spec):
    made = []

    class Leaky(spec.make):
        @property
        def system_prompt(self):
            made.append(1)
            return f"rule {len(made)}"

    with pytest.raises(EnvironmentFault, match="gave different system prompt: 'rule 1' and 'rule 2'"):
        roll_out(replace(spec, make=Leaky), spec.policy("bisect"), spec.tasks("main", 1), group_size=2)


@pytest.mark.parametrize("text", [None, 3])
def test_an_answer_that_is_no_text_fails_its_episode(spec, scripted, text):
    class Odd(scripted):
        def act(self, requests):
            return [Action(text=text if each.row == 1 else "4") for each in requests]

    episodes = roll_out(spec, Odd("odd", None), spec.tasks("main", 3)).episodes
    assert [episode.failure is not None for episode in episodes] == [False, True, False]
    assert episodes[1].failure.stage == "act"
