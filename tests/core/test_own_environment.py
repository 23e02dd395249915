"""The environment that the docs print is one that works."""

import re
from pathlib import Path

import pytest

from gradus import environments
from gradus.core import StopReason
from gradus.rollouts import roll_out

PAGE = Path(__file__).parents[2] / "docs" / "own_environment.md"


@pytest.fixture
def module(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "docs_digits.py").write_text(code.group(1), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "docs_digits:spec"


class Counting:
    """Tries 0, 1, 2, ..."""

    name = "counting"

    def start(self, episodes):
        self.turn = [-1] * len(episodes)
        return self

    def act(self, requests):
        from gradus.core import Action

        for each in requests:
            self.turn[each.row] += 1
        return [Action(text=str(self.turn[each.row])) for each in requests]

    def close(self):
        pass


def test_it_loads_and_plays(module):
    spec = environments.load(module)
    episodes = roll_out(spec, Counting(), spec.tasks("main")).episodes
    for episode in episodes:
        reached = episode.outcome["hidden"] <= 5
        assert episode.stop is (StopReason.TERMINATED if reached else StopReason.TURN_LIMIT)
        assert episode.metrics["true_reward"] == float(reached)
        assert episode.reward.value == pytest.approx(sum(turn.env_reward for turn in episode.turns))


def test_unknown_names_say_what_is_known():
    from gradus.core import ConfigError

    with pytest.raises(ConfigError, match="rhythm"):
        environments.load("rythm")
    with pytest.raises(ConfigError, match="no module"):
        environments.load("no_such_module_here:spec")
