"""A class with ``reset`` and ``step`` is an environment, without a record of ours."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

import gradus
from gradus import environments
from gradus.core import ConfigError, Episode, Observation, StopReason
from gradus.interop.classes import class_spec
from gradus.rollouts import roll_out
from gradus.runs.recipe.load import load_recipe

FILE = '''
import random


class Coin:
    """Guess a coin."""

    def reset(self, seed):
        self.side = random.Random(seed).choice(["heads", "tails"])
        return "Heads or tails?"

    def step(self, action):
        return "it was " + self.side, float(action.strip() == self.side), True
'''


class Doors:
    """Open the right one of three doors; three tries."""

    actions: ClassVar[list[str]] = ["1", "2", "3"]
    max_turns = 3

    def reset(self, *, seed: int, **_: Any) -> tuple[list[int], dict[str, Any]]:
        self.right = str(random.Random(seed).randint(1, 3))
        self.taken: list[str] = []
        return [0, 0], {"an": "info"}

    def step(self, action: str) -> tuple[list[int], float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        done = action == self.right
        return [len(self.taken), int(done)], float(done), done, False, {}

    def expert(self) -> str:
        return self.right


def _episodes(spec: gradus.EnvironmentSpec, policy: str, count: int = 8) -> list[Episode]:
    tasks = [spec.train_task(index) for index in range(count)]
    return list(roll_out(spec, spec.policy(policy), tasks, grader=spec.grader(None)).episodes)


def test_a_lone_file_with_one_class_is_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "coin.py"
    file.write_text(FILE, encoding="utf-8")
    spec = environments.load(str(file))
    assert (spec.name, spec.summary) == ("coin", "Guess a coin.")
    episodes = _episodes(spec, "constant:heads", 32)
    rewards = [episode.reward.value for episode in episodes if episode.reward]
    assert set(rewards) == {0.0, 1.0}
    assert rewards == [float("heads" in (episode.final.text if episode.final else "")) for episode in episodes]
    assert spec.teacher is None  # nothing says what could be answered
    assert spec.language.vocabulary is None


def test_a_class_that_names_no_answers_is_trained_with_a_model_that_is_given(tmp_path: Path) -> None:
    """The recipe asked for a teacher, which there is none, also with the model that the page names as the way out."""
    file = tmp_path / "coin.py"
    file.write_text(FILE, encoding="utf-8")
    recipe = load_recipe(str(file), model="owner/name")
    assert not recipe.teach.enabled
    assert recipe.eval.policies == ("base", "base-greedy", "grpo", "grpo-greedy")
    found = gradus.check(str(file), model="owner/name").findings
    assert not [each.message for each in found if each.status == "fail" and each.check in ("names", "environment")]
    assert [each.message for each in gradus.check(str(file)).findings if "brings no teacher" in each.message]


def test_a_lone_file_prefers_its_spec_and_names_what_it_has(tmp_path: Path) -> None:
    two = tmp_path / "two.py"
    two.write_text(FILE + "\n\nclass Other(Coin):\n    pass\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"has Coin, Other, and no 'spec'"):
        environments.load(str(two))
    assert environments.load(f"{two}:Other").name == "other"
    none = tmp_path / "none.py"
    none.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no class with reset and step"):
        environments.load(str(none))
    named = tmp_path / "named.py"
    named.write_text(
        FILE + "\n\nfrom gradus.interop.classes import class_spec\nspec = class_spec(Coin, name='mine')\n", "utf-8"
    )
    assert environments.load(str(named)).name == "mine"


def test_tuples_of_gymnasium_and_an_expert(tmp_path: Path) -> None:
    spec = gradus.load_environment(Doors)
    assert spec.teacher == "expert"
    assert {episode.reward.value for episode in _episodes(spec, "expert") if episode.reward} == {1.0}
    first = _episodes(spec, "random")[0]
    assert first.turns[0].observation == "[0, 0]"
    assert first.system_prompt == "Answer with one of: 1, 2, 3."


def test_an_answer_that_is_no_action_counts_as_invalid_and_a_random_one_stands_in() -> None:
    spec = class_spec(Doors)
    episodes = _episodes(spec, "constant:the second", 30)
    assert all(not turn.valid and "expected one of 1, 2, 3" in (turn.error or "") for e in episodes for turn in e.turns)
    rate = sum(episode.env_return or 0 for episode in episodes) / 30
    assert 0.4 < rate < 1.0  # three random tries of three doors: 0.70
    again = _episodes(spec, "constant:the second", 30)
    assert [episode.env_return for episode in episodes] == [episode.env_return for episode in again]


def test_observations_pass_as_they_are() -> None:
    class Own:
        def reset(self, *, seed: int | None = None, **_: Any) -> Observation:
            return Observation(text="go", data={"seed": seed})

        def step(self, action: str) -> Observation:
            return Observation(text="end", reward=2.0, terminated=True, action_valid=action == "x")

    episode = _episodes(class_spec(Own), "constant:y")[0]
    assert episode.env_return == 2.0
    assert not episode.turns[0].valid
    assert episode.turns[0].action == "y"


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="int cannot be an environment; expected a class with reset"):
        gradus.load_environment(int)

    class Sized(Doors):
        def __init__(self, doors: int) -> None:
            self.doors = doors

    with pytest.raises(ConfigError, match="Sized needs arguments to be made"):
        class_spec(Sized)


def test_what_a_class_lacks_is_said() -> None:
    class NoSeed:
        def reset(self) -> str:
            return ""

        def step(self, action: str) -> str:
            return action

    with pytest.raises(ConfigError, match=r"NoSeed.reset takes no seed; expected reset\(self, seed\)"):
        class_spec(NoSeed)

    class Word(NoSeed):
        actions = "up"

        def reset(self, seed: int = 0) -> str:
            return ""

    with pytest.raises(ConfigError, match="expected a list of texts"):
        class_spec(Word)

    class NoTuple(Word):
        actions = ()

    episode = _episodes(class_spec(NoTuple), "silence", 1)[0]
    assert episode.stop is StopReason.FAILED
    assert episode.failure
    assert "step returned str; expected (observation, reward, done)" in episode.failure.message


def _class(**given: Any) -> type:
    """One-turn doors with other members."""

    def reset(self: Any, seed: int) -> str:
        self.right = str(random.Random(seed).randint(1, 3))
        return "Three doors."

    def step(self: Any, action: str) -> Any:
        return f"took {action}", float(action == self.right), True

    return type("Own", (), {"actions": ["1", "2", "3"], "reset": reset, "step": step, **given})


def _returns(value: Any) -> Any:
    return lambda self, *_, **__: value


async def _slow_reset(self: Any, seed: int) -> str:
    return "slow"


async def _slow_step(self: Any, action: str) -> tuple[str, float, bool]:
    return f"took {action}", 1.0, True


async def _slow_outcome(self: Any) -> dict[str, Any]:
    return {"right": 1}


def _raises(self: Any, *_: Any, **__: Any) -> Any:
    raise KeyError("k")


@pytest.mark.parametrize(
    ("members", "policy", "expected"),
    [
        ({"step": _returns(("x", 0.0, False, True))}, "random", {"stop": StopReason.TRUNCATED}),
        ({"step": _returns(("x", 0.0, True, {"an": "info"}))}, "random", {"stop": StopReason.TERMINATED}),
        ({"actions": ["go left ", "stay"]}, "constant:go left", {"text": "took go left ", "valid": True}),
        ({"system_prompt": _returns("hello")}, "random", {"prompt": "hello"}),
        ({"outcome": _returns(None)}, "random", {"outcome": {"steps": 1}}),
        ({"outcome": _slow_outcome}, "random", {"outcome": {"steps": 1, "right": 1}}),
        ({"reset": _slow_reset, "step": _slow_step}, "constant:2", {"text": "took 2", "first": "slow"}),
        ({"step": _slow_step}, "constant:2", {"text": "took 2", "first": "Three doors."}),
        ({"step": lambda self, action: _slow_step(self, action)}, "constant:2", {"text": "took 2"}),
        ({"step": _returns(({"größe": {2, 1}}, 0.0, True))}, "random", {"text": '{"größe": [1, 2]}'}),
    ],
)  # fmt: skip
def test_what_a_class_gives_is_read(members: dict[str, Any], policy: str, expected: dict[str, Any]) -> None:
    episode = _episodes(class_spec(_class(**members)), policy, 1)[0]
    assert episode.failure is None
    found = {
        "stop": episode.stop,
        "text": episode.final.text if episode.final else None,
        "first": episode.turns[0].observation,
        "prompt": episode.system_prompt,
        "valid": episode.turns[0].valid,
        "outcome": episode.outcome,
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("members", "stage", "message"),
    [
        ({"expert": _returns(None)}, "act", "Own.expert gave None; expected one of 1, 2, 3"),
        ({"expert": _returns("9")}, "act", "Own.expert gave '9'; expected one of 1, 2, 3"),
        ({"expert": _raises}, "act", "'k'"),
        ({"expert": _returns("1"), "step": _returns(("x", "high", True))}, "step", "gave the reward 'high'; expected"),
        ({"expert": _returns("1"), "step": _returns(None)}, "step", "Own.step returned NoneType; expected (obs"),
        ({"expert": _returns("1"), "step": _returns(({(1, 2): 0}, 0.0, True))}, "step", "give it keys that are texts"),
    ],
)
def test_what_cannot_be_used_fails_the_episode(members: dict[str, Any], stage: str, message: str) -> None:
    """A random action stood in for an expert that did not know, and what it raised ended all episodes."""
    failure = _episodes(class_spec(_class(**members)), "expert", 1)[0].failure
    assert failure is not None
    assert failure.stage == stage
    assert message in failure.message


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"__init__": _raises}, "Own cannot be made: KeyError: 'k'"),
        ({"actions": property(_raises)}, "Own.actions cannot be read: KeyError"),
        ({"actions": ["a", "a "]}, "differ by more than spaces"),
    ],
)
def test_a_class_that_cannot_be_read_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        class_spec(_class(**members))


def test_coroutines_of_a_class_wait_beside_each_other() -> None:
    count = 8

    class Together(_class()):
        met: ClassVar[list[int]] = []

        async def step(self, action: str) -> tuple[str, float, bool]:
            self.met.append(1)
            for _ in range(500):
                if len(self.met) == count:
                    return "met", 1.0, True
                await asyncio.sleep(0.01)
            return "alone", 0.0, True

    assert [episode.env_return for episode in _episodes(class_spec(Together), "random", count)] == [1.0] * count
