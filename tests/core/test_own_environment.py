"""The environment that the docs print is one that works."""

import os
import re
import sys
import time
from pathlib import Path

import pytest
from command_line import gradus

from gradus import commands, environments
from gradus.core import StopReason
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out

PAGE = Path(__file__).parents[2] / "docs" / "own_environment.md"


def _printed():
    """The programs of the page, in order."""
    return re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "docs_digits.py").write_text(_printed()[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "docs_digits:spec"


def test_it_loads_and_plays(module):
    spec = environments.load(module)

    def counting(seen, script):
        script.memory["turn"] = script.memory.get("turn", -1) + 1
        return str(script.memory["turn"])

    episodes = roll_out(spec, FunctionPolicy("counting", counting), spec.tasks("main")).episodes
    for episode in episodes:
        reached = episode.outcome["hidden"] <= 5
        assert episode.stop is (StopReason.TERMINATED if reached else StopReason.TURN_LIMIT)
        assert episode.metrics["true_reward"] == float(reached)
        assert episode.reward.value == pytest.approx(sum(turn.env_reward for turn in episode.turns))


def test_a_class_is_enough(tmp_path):
    (tmp_path / "doors.py").write_text(_printed()[0], encoding="utf-8")
    spec = environments.load(str(tmp_path / "doors.py"))
    assert spec.summary == "Open the right one of three doors; three tries."
    episodes = roll_out(spec, spec.policy("random"), spec.tasks("in-distribution", 60)).episodes
    assert all(len(episode.turns) == 3 or episode.env_return == 1.0 for episode in episodes)
    assert 0.5 < sum(episode.env_return for episode in episodes) / 60 < 0.9  # three random tries of three doors: 0.70


def _commands():
    """What the page tells to do with its first class, without the comments."""
    (block,) = [
        each
        for each in re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if "doors.py" in each
    ]
    return [line.split()[1:] for line in block.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    "arguments", [_commands()[0], pytest.param(_commands()[1], marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_its_commands_work_as_they_stand(arguments, tmp_path, monkeypatch):
    """The audit failed free credit although nobody was there who could do better, and the run was refused.

    A class declares no true reward, and its audit says what can be known without one.
    """
    (tmp_path / "doors.py").write_text(_printed()[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = gradus(*arguments, expect=3 if "audit" in arguments else 0)
    assert "declare a true reward" in " ".join(done.output.split()) or "audit" not in arguments


def test_a_file_that_was_edited_is_imported_anew_by_the_next_call(tmp_path: Path):
    """A notebook's process lives on while its files are edited; the digest of the code is that of the file as it is now."""
    mine, beside = tmp_path / "edited.py", tmp_path / "beside_edited.py"
    mine.write_text(
        "from beside_edited import VALUE\ndef pay(completions, **columns): return [VALUE] * len(completions)\n"
    )

    def paid():
        return commands.try_rewards(["x"], rewards=[f"{mine}:pay"]).rows()[0]["value"]

    for value, edited in ((1.0, mine), (2.0, beside), (3.0, beside)):
        beside.write_text(f"VALUE = {value}\n")
        os.utime(edited, (later := time.time() + value, later))
        assert paid() == value
    module = sys.modules["beside_edited"]
    os.utime(beside, (0, 0))
    os.utime(mine, (0, 0))
    assert paid() == 3.0
    assert sys.modules["beside_edited"] is module


def test_the_page_says_where_a_reward_with_terms_comes_from():
    module = re.search(r"`Reward\(value, components, terms\)` \(from `([\w.]+)`\)", PAGE.read_text(encoding="utf-8"))
    assert module, "a reader took it from gradus, which does not have it"
    assert hasattr(sys.modules[module.group(1)], "Reward")
