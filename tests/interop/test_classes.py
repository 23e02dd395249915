"""A class with ``reset`` and ``step`` is an environment, without a record of ours."""

import asyncio
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import gradus
from gradus import environments
from gradus.core import ConfigError, Episode, Observation, StopReason
from gradus.interop.classes import class_spec
from gradus.rollouts import roll_out

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


async def _slow_step(self: Any, action: str) -> tuple[str, float, bool]:
    return f"took {action}", 1.0, True


def _raises(self: Any, *_: Any, **__: Any) -> Any:
    raise KeyError("k")


@pytest.mark.parametrize(
    ("members", "policy", "expected"),
    [
        ({"step": _returns(("x", 0.0, False, True))}, "random", {"stop": StopReason.TRUNCATED}),
        ({"step": _returns(("x", 0.0, True, {"an": "info"}))}, "random", {"stop": StopReason.TERMINATED}),
        ({"actions": ["go left ", "stay"]}, "constant:go left", {"text": "took go left ", "valid": True}),
        ({"step": _slow_step}, "constant:2", {"text": "took 2", "first": "Three doors."}),
        ({"step": _returns(Observation(text="end", reward=2.0, terminated=True))}, "random", {"text": "end"}),
        ({"step": _returns(([np.arange(2)], np.float32(0.5), np.True_))}, "random", {"text": "[[0, 1]]"}),
    ],
)
def test_what_a_class_gives_is_read(members: dict[str, Any], policy: str, expected: dict[str, Any]) -> None:
    episode = _episodes(class_spec(_class(**members)), policy, 1)[0]
    assert episode.failure is None
    found = {
        "stop": episode.stop,
        "text": episode.final.text if episode.final else None,
        "first": episode.turns[0].observation,
        "valid": episode.turns[0].valid,
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("members", "stage", "message"),
    [
        ({"expert": _returns(None)}, "act", "Own.expert gave None; expected one of 1, 2, 3"),
        ({"expert": _raises}, "act", "'k'"),
        ({"expert": _returns("1"), "step": _returns(("x", "high", True))}, "step", "gave the reward 'high'; expected"),
        ({"expert": _returns("1"), "step": _returns(None)}, "step", "Own.step returned NoneType; expected (obs"),
    ],
)
def test_what_cannot_be_used_fails_the_episode(members: dict[str, Any], stage: str, message: str) -> None:
    """A random action stood in for an expert that did not know, and what it raised ended all episodes."""
    failure = _episodes(class_spec(_class(**members)), "expert", 1)[0].failure
    assert failure.stage == stage
    assert message in failure.message


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"__init__": _raises}, "Own cannot be made: KeyError: 'k'"),
        ({"__init__": lambda self, doors: None}, "Own needs arguments to be made"),
        ({"actions": "up"}, "expected a list of texts"),
        ({"reset": lambda self: ""}, r"Own.reset takes no seed; expected reset\(self, seed\)"),
        ({"step": None}, "Own cannot be an environment; expected a class with reset"),
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
