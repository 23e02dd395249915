"""``gymnasium:ID`` as a text environment."""

from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gymnasium")

import gymnasium

from gradus import environments
from gradus.core import ConfigError
from gradus.rollouts import roll_out

LAKE = "gymnasium:FrozenLake-v1?is_slippery=false"


def test_a_lake_is_drawn_and_crossed() -> None:
    environment = environments.load(LAKE).make()
    first = environment.reset(seed=0)
    assert first.text.splitlines()[-1] == "HFFG"
    assert first.text.startswith("*S")  # a drawing of one color has stars
    for move in (1, 1, 2, 1, 2, 2):
        seen = environment.step(f"I go {move}")
    assert (seen.terminated, seen.reward) == (True, 1.0)
    assert "0: Move left" in environment.system_prompt


@pytest.mark.parametrize("name", ["CliffWalking-v1", "Blackjack-v1", "CartPole-v1"])
def test_the_same_seed_is_the_same_episode(name: str) -> None:
    spec = environments.load(f"gymnasium:{name}")
    once, again = (roll_out(spec, spec.policy("random"), spec.tasks("in-distribution", 6)).episodes for _ in range(2))
    assert [each.turns for each in once] == [each.turns for each in again]
    assert all(each.reward and each.reward.value == each.env_return for each in once)


def test_silence_does_not_escape_what_steps_cost() -> None:
    spec = environments.load("gymnasium:CliffWalking-v1")
    episodes = roll_out(spec, spec.policy("silence"), spec.tasks("in-distribution", 3)).episodes
    assert all(each.reward and each.reward.value is not None and each.reward.value <= -100 for each in episodes)
    assert not any(turn.valid for each in episodes for turn in each.turns)


def test_every_state_of_the_taxi_has_a_text_of_its_own() -> None:
    environment: Any = environments.load("gymnasium:Taxi-v4").make()
    environment.reset(seed=0)
    taxi = environment.inner.unwrapped
    texts = set()
    for taxi.s in range(500):
        texts.add(environment._text(taxi.s))
    assert len(texts) == 500
    assert any("<blue>R" in text for text in texts)
    assert "color" in environment.system_prompt


def test_what_cannot_be_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected Discrete"):
        environments.load("gymnasium:Pendulum-v1")
    with pytest.raises(ConfigError, match="NoSuchThing"):
        environments.load("gymnasium:NoSuchThing-v1")
    with pytest.raises(ConfigError, match="takes an id"):
        environments.load("gymnasium")


class Line(gymnasium.Env):
    """Walk to 5."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(11)
    max_turns = 6

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(0, 11))
        return self.place, {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        return self.place, float(self.place == 5), self.place == 5, False, {}


def test_a_class_of_ones_own_gets_numbers_and_not_their_text() -> None:
    """It got the answer's text, so that every answer was the same to it, without a word."""
    spec = environments.from_class(Line)
    assert (spec.name, spec.max_turns) == ("line", 6)
    environment = spec.make()
    start = int(environment.reset(seed=3).text)
    assert int(environment.step("I go 1").text) == start + 1
    assert not environment.step("left").action_valid


@pytest.mark.parametrize(
    ("answer", "place"),
    [("I go 1", 1), ("1.", 1), ("2: then 0", -1), ("-1", None), ("1.5", None)],
)  # fmt: skip
def test_a_number_with_a_sign_or_a_fraction_is_no_action(answer: str, place: int | None) -> None:
    environment = environments.from_class(Line).make()
    start = int(environment.reset(seed=3).text)
    seen = environment.step(answer)
    assert seen.action_valid is (place is not None)
    assert place is None or int(seen.text) == start + place


def _line(**given: Any) -> type:
    return type("Own", (Line,), given)


def test_actions_begin_where_their_space_begins_and_what_is_cut_off_is_truncated() -> None:
    taken: list[int] = []
    kind = _line(
        action_space=gymnasium.spaces.Discrete(2, start=5),
        step=lambda self, action: (taken.append(int(action)) or 0, 0.0, False, True, {}),
    )
    environment = environments.from_class(kind).make()
    environment.reset(seed=0)
    seen = environment.step("0 would be wrong, " + "so " * 30 + "I go 1")
    assert (taken, seen.action_valid, seen.terminated, seen.truncated) == ([6], True, False, True)
    environment.reset(seed=0)
    assert not environment.step("2").action_valid, "there are two actions, 0 and 1"
    assert taken[1:] in ([5], [6])
    assert environments.load("gymnasium:CartPole-v1").max_turns == 500
