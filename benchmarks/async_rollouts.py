"""Episodes whose steps take random time: the whole rollout beside its longest episode, with coroutines, threads, and in rounds."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradus.core import Condition, EnvironmentSpec, Grader, Observation, Stepping, Task, child_rng
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out

SLEPT: dict[int, float] = defaultdict(float)  # seconds of each episode, as drawn


class Waiting:
    """Every step sleeps for a time out of an exponential distribution, drawn by seed and step."""

    system_prompt, state = "wait", {}

    def __init__(self, turns: int, mean: float) -> None:
        self._turns, self._mean = turns, mean

    def reset(self, *, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        self._seed, self._step = seed or 0, 0
        SLEPT[self._seed] = 0.0
        return Observation(text="begin")

    def _next(self) -> float:
        self._step += 1
        seconds = child_rng(self._seed, "wait", self._step).expovariate(1 / self._mean)
        SLEPT[self._seed] += seconds
        return seconds

    def _seen(self) -> Observation:
        return Observation(text=f"step {self._step}", reward=1.0, terminated=self._step == self._turns)

    def step(self, action: str) -> Observation:
        time.sleep(self._next())
        return self._seen()

    def outcome(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None: ...


class WaitingCoroutine(Waiting):
    async def step(self, action: str) -> Observation:
        await asyncio.sleep(self._next())
        return self._seen()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--episodes", type=int, default=256)
    options.add_argument("--turns", type=int, default=8)
    options.add_argument("--mean", type=float, default=1.0, help="seconds a step takes on average")
    chosen = options.parse_args()
    spec = EnvironmentSpec(
        name="waiting",
        summary="steps that take time",
        make=lambda: Waiting(chosen.turns, chosen.mean),
        graders={"steps": Grader(name="steps", compute=lambda episodes: [each.env_return for each in episodes])},
        conditions={"main": Condition(name="main", seeds=range(chosen.episodes))},
        train_task=lambda index: Task(environment="waiting", seed=10**6 + index),
        max_turns=chosen.turns,
    )
    coroutines = replace(spec, make=lambda: WaitingCoroutine(chosen.turns, chosen.mean))
    ways = {
        "coroutines": coroutines,
        "threads": replace(spec, stepping=Stepping(threads=True)),
        "coroutines, in rounds": replace(coroutines, stepping=Stepping(rounds=True)),
    }
    policy = FunctionPolicy("go", lambda seen, script: "go")
    ratios: dict[str, float] = {}
    groups: list[Any] = []
    for name, each in ways.items():
        result = roll_out(each, policy, each.tasks("main"), max_concurrent=chosen.episodes)
        groups.append(result.groups)
        ratios[name] = round(result.seconds["total"] / max(SLEPT.values()), 3)
    assert groups[0] == groups[1] == groups[2], "the ways gave different episodes"
    print(json.dumps({"name": "async_rollouts", "ratio": ratios["coroutines"], "ours": ratios, "other": 1.0,
                      "unit": "seconds over those of the longest episode", "runs": 1}))  # fmt: skip


if __name__ == "__main__":
    main()
