"""``[stepping]`` of a recipe: what its keys do to the episodes of an environment that takes time."""

import os
from pathlib import Path

import pytest

from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.runs.recipe.load import load_recipe

ENVIRONMENT = """
import os, time
from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Task


class Slow:
    system_prompt, state = "", {}

    def reset(self, *, seed=None, episode_id=None, **options):
        self.seed = seed
        return Observation(text="begin")

    def step(self, action):
        time.sleep(5.0 if action == "sleep" and self.seed == 1 else 0.0)
        return Observation(text=str(os.getpid()), terminated=True, reward=1.0)

    def outcome(self):
        return {"pid": os.getpid()}

    def close(self):
        pass


SPEC = EnvironmentSpec(
    name="slow", summary="takes time", make=Slow, max_turns=1,
    graders={"return": Grader(name="return", compute=lambda episodes: [each.env_return for each in episodes])},
    conditions={"main": Condition(name="main", seeds=range(6))},
    train_task=lambda index: Task(environment="slow", seed=1000 + index),
)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"slow_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return name


def episodes(module: str, said: str, *changes: str):
    spec = load_recipe(f"{module}:SPEC", changes=[f"stepping.{each}" for each in changes]).spec()
    return roll_out(spec, FunctionPolicy("same", lambda _, __: said), spec.tasks("main"), group_size=2).episodes


@pytest.mark.parametrize("threads", ["true", "false"])
def test_a_slow_step_fails_its_episode(module: str, threads: str) -> None:
    rows = episodes(module, "sleep", f"threads={threads}", "step_seconds=0.5")
    assert [each.failure is not None for each in rows] == [each.task.seed == 1 for each in rows]
    assert {each.failure.type for each in rows if each.failure} == {"OutOfTime"}


def test_environments_are_held_by_other_processes(module: str) -> None:
    pids = {each.outcome["pid"] for each in episodes(module, "go", "processes=2")}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_an_expert_answers_for_an_environment_in_another_process(tmp_path: Path):
    """Every episode of the teacher failed: the environment here knew no expert."""
    (tmp_path / "doors.py").write_text(
        "class Doors:\n    actions = ['1', '2', '3']\n    max_turns = 2\n"
        "    def reset(self, seed): self.right = str(seed % 3 + 1); return 'go'\n"
        "    def step(self, action): return 'next', float(action == self.right), False\n"
        "    def expert(self): return self.right if self.right != '3' else 'none'\n"
    )
    recipe = load_recipe(str(tmp_path / "doors.py"), changes={"stepping.processes": 2})
    spec = recipe.spec()
    episodes = roll_out(spec, spec.policy("expert"), spec.tasks("in-distribution", 6)).episodes
    assert [each.env_return for each in episodes if each.failure is None] == [2.0] * 4
    assert all("Doors.expert gave 'none'; expected one of 1, 2, 3" in e.failure.message for e in episodes if e.failure)
