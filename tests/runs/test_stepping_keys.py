"""``[stepping]`` of a recipe: what its keys do to the episodes of an environment that takes time."""

from pathlib import Path

import pytest

from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.runs.recipe.load import load_recipe

ENVIRONMENT = """
import time
from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Task


class Slow:
    system_prompt, state = "", {}

    def reset(self, *, seed=None, episode_id=None, **options):
        self.seed = seed
        return Observation(text="begin")

    def step(self, action):
        time.sleep(5.0 if action == "sleep" and self.seed == 1 else 0.0)
        return Observation(text="end", terminated=True, reward=1.0)

    def outcome(self):
        return {}

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
    return name


def episodes(module: str, said: str, *changes: str):
    spec = load_recipe(f"{module}:SPEC", changes=[f"stepping.{each}" for each in changes]).spec()
    return roll_out(spec, FunctionPolicy("same", lambda _, __: said), spec.tasks("main"), group_size=2).episodes


@pytest.mark.parametrize("threads", ["true", "false"])
def test_a_slow_step_fails_its_episode(module: str, threads: str) -> None:
    rows = episodes(module, "sleep", f"threads={threads}", "step_seconds=0.5")
    assert [each.failure is not None for each in rows] == [each.task.seed == 1 for each in rows]
    assert {each.failure.type for each in rows if each.failure} == {"OutOfTime"}
