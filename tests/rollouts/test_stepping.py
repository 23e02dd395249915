"""Environments that take their time: what comes of an episode does not depend on who was first."""

import asyncio
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
from troubled import Coroutines, Troubled

from gradus.core import ConfigError, EnvironmentFault, Grader, Stepping, Task, TemporaryFault, child_rng
from gradus.environments import load
from gradus.rollouts import in_processes, roll_out
from gradus_worlds.rhythm.environment import RhythmEnvironment


def slowed(spec, delay):
    """The environment as coroutines that sleep ``delay(row's task seed, step)`` seconds."""
    plain = type(spec.make())

    class Slow(plain):
        async def reset(self, *, seed=None, **options):
            self.seed = seed
            await asyncio.sleep(delay(seed, 0))
            return plain.reset(self, seed=seed, **options)

        async def step(self, action):
            await asyncio.sleep(delay(self.seed, self.turns + 1))
            return plain.step(self, action)

        async def outcome(self):
            return plain.outcome(self)

    return replace(spec, make=Slow)


def random_delay(salt):
    return lambda seed, step: 0.02 * child_rng(seed, salt, step).random()


def test_coroutines_and_threads_give_the_episodes_of_plain_calls(spec):
    tasks = spec.tasks("main")
    expected = roll_out(spec, spec.policy("random"), tasks, group_size=3, seed=5).groups
    for salt in ("one", "other"):
        slow = slowed(spec, random_delay(salt))
        assert roll_out(slow, spec.policy("random"), tasks, group_size=3, seed=5).groups == expected
    threaded = replace(spec, stepping=Stepping(threads=True))
    assert roll_out(threaded, spec.policy("random"), tasks, group_size=3, seed=5).groups == expected


def test_threads_run_plain_steps_beside_each_other(spec):
    plain = type(spec.make())
    together = threading.Barrier(8, timeout=10)

    class Meeting(plain):
        def reset(self, **options):
            together.wait()  # breaks unless eight resets run at once
            return plain.reset(self, **options)

    meeting = replace(spec, make=Meeting, stepping=Stepping(threads=True))
    episodes = roll_out(meeting, spec.policy("bisect"), spec.tasks("main", 8)).episodes
    assert [episode.failure for episode in episodes] == [None] * 8


class Counting:
    """Another policy, whose calls are counted."""

    def __init__(self, policy):
        self.policy, self.name, self.sizes = policy, policy.name, []

    def start(self, episodes):
        self.session = self.policy.start(episodes)
        return self

    def act(self, requests):
        rows = [request.row for request in requests]
        assert rows == sorted(rows)
        self.sizes.append(len(rows))
        return self.session.act(requests)

    def close(self):
        self.session.close()


def test_the_policy_answers_whoever_waits_or_everybody_in_rounds(spec):
    slow = slowed(spec, lambda seed, step: 0.3 if seed == 0 else 0.005)
    tasks = spec.tasks("main", 6)
    free, rounds, plain = (Counting(spec.policy("bisect")) for _ in range(3))
    first = roll_out(slow, free, tasks)
    same = roll_out(replace(slow, stepping=Stepping(rounds=True)), rounds, tasks)
    assert first.groups == same.groups == roll_out(spec, plain, tasks).groups
    assert rounds.sizes == plain.sizes
    assert len(free.sizes) > len(rounds.sizes)
    assert sum(free.sizes) == sum(rounds.sizes)


@pytest.mark.parametrize("stepping", [Stepping(step_seconds=0.1), Stepping(episode_seconds=0.1)])
def test_a_step_or_an_episode_that_takes_too_long_ends_its_episode_only(spec, stepping):
    slow = replace(slowed(spec, lambda seed, step: 20.0 if (seed, step) == (3, 1) else 0.0), stepping=stepping)
    episodes = roll_out(slow, spec.policy("bisect"), spec.tasks("main")).episodes
    failed = [episode for episode in episodes if episode.failure]
    assert [(each.task.seed, each.failure.stage, each.failure.type) for each in failed] == [(3, "step", "OutOfTime")]


def hanging(spec, hangs):
    """A plain class whose steps do not return for some seeds, whatever it catches."""
    plain = type(spec.make())

    class Hanging(plain):
        def reset(self, *, seed=None, **options):
            self.seed = seed
            return plain.reset(self, seed=seed, **options)

        def step(self, action):
            while self.seed in hangs:
                with suppress(Exception):
                    time.sleep(60)
            return plain.step(self, action)

    return replace(spec, make=Hanging)


def test_a_plain_step_that_hangs_ends_its_episode_and_is_named_with_its_line(spec):
    limited = replace(hanging(spec, {3}), stepping=Stepping(step_seconds=0.2))
    episodes = roll_out(limited, spec.policy("bisect"), spec.tasks("main")).episodes
    (failed,) = [each for each in episodes if each.failure]
    assert failed.failure.type == "OutOfTime"
    said = failed.failure.message
    assert said.startswith("step of guess (seed 3, turn 1) took more than 0.2 s, at test_stepping.py:")
    assert said.endswith(" in step")
    others = [
        each for each in roll_out(spec, spec.policy("bisect"), spec.tasks("main")).episodes if each.task.seed != 3
    ]
    assert [each for each in episodes if not each.failure] == others


def test_without_any_setting_plain_steps_that_all_hang_end_the_rollout(spec, monkeypatch, capfd):
    monkeypatch.setattr("gradus.core.spec.STEP_SECONDS", 0.3)
    monkeypatch.setattr("gradus.core.foreign._TELL_AFTER", 0.1)
    with pytest.raises(EnvironmentFault, match=r"step of guess \(seed 1, turn 1\) .* no step before it returned; mend"):
        roll_out(hanging(spec, range(9)), spec.policy("bisect"), spec.tasks("main"))
    assert "step of guess (seed 0, turn 1) has taken 0.1 s, it is at test_stepping.py:" in capfd.readouterr().err


def test_a_coroutine_that_blocks_its_loop_is_left_behind_and_named(spec, monkeypatch):
    monkeypatch.setattr("gradus.rollouts.stepping._GRACE", 0.2)
    plain, release = type(spec.make()), threading.Event()

    class Blocking(plain):
        async def step(self, action):
            release.wait(60)
            return plain.step(self, action)

    blocked = replace(spec, make=Blocking, stepping=Stepping(step_seconds=0.2))
    episodes = roll_out(blocked, spec.policy("bisect"), spec.tasks("main", 2)).episodes
    release.set()
    assert {each.failure.type for each in episodes} == {"OutOfTime"}
    assert "blocks the event loop" in episodes[0].failure.message
    assert all(
        each.failure is None
        for each in roll_out(slowed(spec, lambda *_: 0.0), spec.policy("bisect"), spec.tasks("main", 2)).episodes
    )


@pytest.mark.parametrize("threads", [False, True])
def test_a_temporary_fault_is_tried_again_and_a_lasting_one_fails(spec, threads):
    plain = type(spec.make())

    class Busy(plain):
        left = 0

        def reset(self, *, seed=None, **options):
            self.left = {0: 1, 1: 2}.get(seed, 0)
            return plain.reset(self, seed=seed, **options)

        def step(self, action):
            if self.left:
                self.left -= 1
                raise TemporaryFault("busy")
            return plain.step(self, action)

    busy = replace(spec, make=Busy, stepping=Stepping(threads=threads, retries=1))
    episodes = roll_out(busy, spec.policy("bisect"), spec.tasks("main", 3)).episodes
    assert [episode.failure and episode.failure.type for episode in episodes] == [None, "TemporaryFault", None]
    assert episodes[0].turns == roll_out(spec, spec.policy("bisect"), spec.tasks("main", 1)).episodes[0].turns


def test_a_grader_may_be_a_coroutine(spec):
    async def compute(episodes):
        await asyncio.sleep(0)
        return [float(len(episode.turns)) for episode in episodes]

    episodes = roll_out(
        spec, spec.policy("bisect"), spec.tasks("main"), grader=Grader(name="slow", compute=compute)
    ).episodes
    assert [episode.reward.value for episode in episodes] == [float(len(episode.turns)) for episode in episodes]


def test_environments_in_processes_give_the_same_episodes_and_their_errors_end_them_alone():
    rhythm = load("rhythm")
    elsewhere = replace(rhythm, make=in_processes(RhythmEnvironment, 2), stepping=Stepping(threads=True))
    tasks = [*rhythm.tasks("in-distribution", 3), Task(environment="rhythm", seed=1, options={"persons": "nobody"})]
    expected = roll_out(rhythm, rhythm.policy("heuristic"), tasks).episodes
    came = roll_out(elsewhere, rhythm.policy("heuristic"), tasks).episodes
    assert came[:3] == expected[:3]
    assert (came[3].failure.stage, came[3].failure.type) == ("reset", "EnvironmentFault")
    assert expected[3].failure.message.partition(" (")[0] in came[3].failure.message


def test_what_another_process_cannot_import_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    """A lambda left a pipe that nobody read, and the second reset waited for ever."""
    with pytest.raises(ConfigError, match=r"cannot pass .*lambda.* on .*; expected a class or a function of a module"):
        in_processes(lambda: Troubled("none"), 1)
    notebook = ModuleType("__main__")
    kind = type("Doors", (), {"__module__": "__main__"})
    notebook.Doors = kind
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ConfigError, match="which this session alone knows; expected a class"):
        in_processes(kind, 1)
    notebook.__file__ = "a_script.py"
    in_processes(kind, 1)


@pytest.mark.parametrize(
    ("trouble", "failed"),
    [("crash", {0, 1, 2}), ("slow", {0, 1, 2}), ("unsendable", {0})],
)
def test_what_goes_wrong_in_a_process_fails_the_episodes_in_it_and_the_next_call_goes_on(spec, trouble, failed):
    """One process holds the three environments. What was lost with it is no episode with a reward."""
    make = in_processes(partial(Troubled, trouble), 1)
    stepping = Stepping(threads=True, step_seconds=3.0 if trouble == "slow" else None, rounds=True)
    troubled = replace(spec, make=make, stepping=stepping, content=None)
    tasks = [Task(environment=spec.name, seed=seed) for seed in (0, 1, 2)]
    grader = Grader(name="env", compute=lambda episodes: [1.0 for _ in episodes])
    came = roll_out(troubled, spec.policy("bisect"), tasks, grader=grader).episodes
    assert {episode.task.seed for episode in came if episode.failure} == failed
    assert all(episode.reward is None for episode in came if episode.failure)
    again = roll_out(troubled, spec.policy("bisect"), tasks[1:], grader=grader).episodes
    assert [episode.outcome["seed"] for episode in again] == [1, 2]


def test_coroutines_are_awaited_in_a_process_too(spec):
    elsewhere = replace(spec, make=in_processes(Coroutines, 1), stepping=Stepping(threads=True), content=None)
    (episode,) = roll_out(elsewhere, spec.policy("bisect"), [Task(environment=spec.name, seed=1)]).episodes
    assert (episode.failure, episode.turns[0].env_reward) == (None, 1.0)
