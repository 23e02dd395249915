"""Environments that take their time: what comes of an episode does not depend on who was first."""

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from gradus.core import Grader, Stepping, child_rng
from gradus.core.errors import OutOfTime
from gradus.rollouts import roll_out


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


def test_without_any_setting_a_plain_step_that_hangs_ends_the_rollout(spec, monkeypatch):
    monkeypatch.setattr("gradus.core.spec.STEP_SECONDS", 0.3)
    with pytest.raises(OutOfTime, match=r"step of guess \(seed 0, turn 1\) took more than 0.3 s, at test_stepping.py:"):
        roll_out(hanging(spec, range(9)), spec.policy("bisect"), spec.tasks("main"))


def test_a_grader_may_be_a_coroutine(spec):
    async def compute(episodes):
        await asyncio.sleep(0)
        return [float(len(episode.turns)) for episode in episodes]

    episodes = roll_out(
        spec, spec.policy("bisect"), spec.tasks("main"), grader=Grader(name="slow", compute=compute)
    ).episodes
    assert [episode.reward.value for episode in episodes] == [float(len(episode.turns)) for episode in episodes]
