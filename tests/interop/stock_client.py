"""Run by an interpreter that has a stock OpenEnv and no Gradus: ``stock_client.py ADDRESS KIND SESSIONS STEPS``.

Prints one JSON line: for each session, the rewards in order. ``KIND`` is generic (dictionaries in and out) or typed.
"""

import asyncio
import json
import sys
from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from pydantic import ConfigDict

NAMES = ("deep_work", "sleep", "exercise", "socialize", "me_time", "meditate", "learn")


class WeekAction(Action):
    action_type: str
    belief: list[float] | None = None


class WeekObservation(Observation):
    model_config = ConfigDict(extra="allow")
    meters: list[float]
    steps_left: int


class WeekClient(EnvClient[WeekAction, WeekObservation, State]):
    def _step_payload(self, action: WeekAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WeekObservation]:
        fields = {**payload["observation"], "reward": payload["reward"], "done": payload["done"]}
        return StepResult(observation=WeekObservation(**fields), reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def action(session: int, step: int) -> dict[str, Any]:
    """Every third action is a text, as a language model would answer; the others are typed."""
    name = NAMES[(session + step) % len(NAMES)]
    digits = [(session + step) % 10, step % 10, (session * 3 + step) % 10]
    if step % 3 == 0:
        return {"text": f"{digits[0]} {digits[1]} {digits[2]} {name}"}
    return {"action_type": name, "belief": [digit / 9 for digit in digits] if step % 2 else None}


async def generic(address: str, session: int, steps: int) -> list[float]:
    rewards: list[float] = []
    async with GenericEnvClient(base_url=address, message_timeout_s=300.0) as client:
        done, seed = True, session * 1_000
        for step in range(steps):
            if done:
                result = await client.reset(seed=seed, episode_id=f"{session}-{seed}")
                assert result.observation["steps_left"] == 28
                seed += 1
            result = await client.step(action(session, step))
            rewards.append(result.reward)
            done = result.done
        state = await client.state()
        assert state["step_count"] == (steps - 1) % 28 + 1, state
    return rewards


async def typed(address: str, session: int, steps: int) -> list[float]:
    rewards: list[float] = []
    async with WeekClient(base_url=address, message_timeout_s=300.0) as client:
        done, seed = True, session * 1_000
        for step in range(steps):
            if done:
                result = await client.reset(seed=seed)
                seed += 1
            chosen = WeekAction(action_type=NAMES[(session + step) % len(NAMES)], belief=[0.25, 0.5, 1.0])
            result = await client.step(chosen)
            assert result.observation.reward == result.reward
            rewards.append(result.reward)
            done = result.done
    return rewards


async def main() -> None:
    address, kind, sessions, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    run_episode = {"generic": generic, "typed": typed}[kind]
    print(json.dumps(await asyncio.gather(*(run_episode(address, session, steps) for session in range(sessions)))))


if __name__ == "__main__":
    asyncio.run(main())
