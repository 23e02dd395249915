"""Somebody's code that calls ``exit`` fails for its own episode alone; Ctrl-C still ends all."""

from dataclasses import replace
from functools import partial

import pytest
from troubled import Exits

from gradus.core import Action, Grader, Stepping, Task
from gradus.core.waiting import wait_for
from gradus.rewards import Completion, Rewards
from gradus.rollouts import in_processes, roll_out


def leave(*_, **__):
    raise SystemExit(3)


async def leave_later(*_, **__):
    raise SystemExit(3)


def plain_reward(completions, **_):
    return [leave() if "exit" in each else 1.0 for each in completions]


async def waiting_reward(completions, **_):
    return plain_reward(completions)


def awaitable_reward(completions, **_):
    return waiting_reward(completions)


@pytest.mark.parametrize("function", [plain_reward, waiting_reward, awaitable_reward])
def test_a_reward_function_that_exits_is_an_error_of_its_completion(function):
    rewards = Rewards([function])
    scored = rewards([Completion(prompt="", completion=text) for text in ("a", "exit()", "b")])
    assert [each.value for each in scored] == [1.0, None, 1.0]
    assert (scored[1].error or "").startswith(f"reward {function.__name__!r} raised SystemExit: 3")
    assert rewards.errors == {f"{function.__name__}: SystemExit": 1}


@pytest.mark.parametrize("function", [plain_reward, waiting_reward])
def test_ctrl_c_in_a_reward_function_ends_the_run(function, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(globals(), "leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Rewards([function])([Completion(prompt="", completion="exit()")])


def test_a_grader_that_exits_loses_its_reward(spec):
    grader = Grader(
        name="leaving", compute=lambda episodes: [leave() if each.task.seed == 1 else 1.0 for each in episodes]
    )
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main", 3), grader=grader).episodes
    assert [each.reward.value for each in episodes] == [1.0, None, 1.0]
    assert episodes[1].reward.error.startswith("SystemExit: 3")


@pytest.mark.parametrize(
    ("stage", "how"),
    [
        *((stage, "plain") for stage in ("reset", "step", "outcome", "close")),
        *(("step", how) for how in ("coroutine", "threads", "process")),
        ("close", "process"),
    ],
)
def test_an_environment_that_exits_ends_its_own_episode(spec, stage, how):
    make = partial(Exits, stage, how == "coroutine")
    stepping = Stepping(threads=how in ("threads", "process"))
    made = in_processes(make, 1) if how == "process" else make
    leaving = replace(spec, make=made, stepping=stepping, content=None)
    tasks = [Task(environment=spec.name, seed=seed) for seed in (0, 1, 2)]
    grader = Grader(name="one", compute=lambda episodes: [1.0 for _ in episodes])
    rolled = partial(roll_out, leaving, spec.policy("bisect"), tasks, grader=grader)
    if stage == "close":
        with pytest.warns(UserWarning, match="SystemExit: 3"):
            episodes = rolled().episodes
        assert not any(each.failure for each in episodes)
        return
    failures = [each.failure for each in rolled().episodes]
    assert [failure and failure.stage for failure in failures] == [stage, None, None]
    assert "SystemExit: 3" in f"{failures[0].type}: {failures[0].message}"


def test_ctrl_c_in_an_environment_ends_the_run(spec):
    class Interrupted(type(spec.make())):
        def step(self, action):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        roll_out(replace(spec, make=Interrupted), spec.policy("bisect"), spec.tasks("main", 2))


def test_an_exit_in_a_coroutine_reaches_who_waits_and_ends_no_loop():
    with pytest.raises(SystemExit):
        wait_for(leave_later())

    async def answer():
        return Action(text="still there")

    assert wait_for(answer()).text == "still there"
