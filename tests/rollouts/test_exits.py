"""Somebody's code that calls ``exit`` fails for its own episode alone; Ctrl-C still ends all."""

from dataclasses import replace

import pytest

from gradus.core import Grader, Stepping
from gradus.rewards import Completion, Rewards
from gradus.rollouts import roll_out


def leave(*_, **__):
    raise SystemExit(3)


def plain_reward(completions, **_):
    return [leave() if "exit" in each else 1.0 for each in completions]


def test_a_reward_function_that_exits_is_an_error_of_its_completion():
    rewards = Rewards([plain_reward])
    scored = rewards([Completion(prompt="", completion=text) for text in ("a", "exit()", "b")])
    assert [each.value for each in scored] == [1.0, None, 1.0]
    assert (scored[1].error or "").startswith("reward 'plain_reward' raised SystemExit: 3")
    assert rewards.errors == {"plain_reward: SystemExit": 1}


def test_ctrl_c_in_a_reward_function_ends_the_run(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(globals(), "leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Rewards([plain_reward])([Completion(prompt="", completion="exit()")])


def test_a_grader_that_exits_loses_its_reward(spec):
    grader = Grader(
        name="leaving", compute=lambda episodes: [leave() if each.task.seed == 1 else 1.0 for each in episodes]
    )
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main", 3), grader=grader).episodes
    assert [each.reward.value for each in episodes] == [1.0, None, 1.0]
    assert episodes[1].reward.error.startswith("SystemExit: 3")


@pytest.mark.parametrize("how", ["plain", "coroutine", "threads"])
def test_a_step_that_exits_ends_its_own_episode(spec, how):
    class Exits(type(spec.make())):
        def reset(self, *, seed=None, **options):
            self.exits = seed == 0
            return super().reset(seed=seed, **options)

        def step(self, action):
            return leave() if self.exits else super().step(action)

    class Later(Exits):
        async def step(self, action):
            return Exits.step(self, action)

    leaving = replace(spec, make=Later if how == "coroutine" else Exits, stepping=Stepping(threads=how == "threads"))
    failures = [each.failure for each in roll_out(leaving, spec.policy("bisect"), spec.tasks("main", 3)).episodes]
    assert [failure and failure.stage for failure in failures] == ["step", None, None]
    assert "SystemExit: 3" in f"{failures[0].type}: {failures[0].message}"
