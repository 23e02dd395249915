"""Agents of the tests: loops over an OpenAI client, and their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Grader, Message, Reward, StopReason, ToolCall
from gradus.environments import load
from gradus.environments.tools import ToolEnvironment
from gradus.interop.agents.spec import agent_spec
from gradus_worlds.shop.desk import Desk
from gradus_worlds.shop.graders import GRADERS

ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 41)]
_TURNS = 10


async def ask(client: Any, *messages: tuple[str, str], **options: Any) -> str:
    said = [{"role": role, "content": text} for role, text in messages]
    reply = await client.chat.completions.create(model="any", messages=said, **options)
    return reply.choices[0].message.content


def length(completions: list[str], **_: Any) -> list[float]:
    """The longer the better: two members of a group seldom get the same."""
    return [float(len(text)) for text in completions]


def record(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.call_id}
    return {"role": message.role, "content": message.content}


async def shop(task: Mapping[str, Any], client: Any) -> dict[str, Any]:
    """Serve one customer: a loop over the client, the desk's tools in this process."""
    desk = ToolEnvironment(Desk())
    seen = desk.reset(**task)
    messages = [{"role": "system", "content": desk.system_prompt}, *map(record, seen.messages)]
    calls: list[Any] = []
    for _ in range(_TURNS):
        reply = await client.chat.completions.create(model="any", messages=messages, tools=list(desk.tools))
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        told = Message(role="assistant", content=said.content or "", calls=tuple(map(called, said.tool_calls or ())))
        seen = desk.step(told if told.calls else told.content)
        calls.append([[each.name, each.fault] for each in seen.action_calls])
        if seen.terminated:
            break
        messages += map(record, seen.messages)
    outcome = dict(desk.outcome())
    desk.close()
    return {"outcome": outcome, "calls": calls, "terminated": seen.terminated}


def called(call: Any) -> ToolCall:
    import json

    return ToolCall(name=call.function.name, arguments=json.loads(call.function.arguments), id=call.id)


def native(episode: Episode) -> Episode:
    """A foreign episode of the shop with what its grader reads of a native one."""
    result = episode.outcome["result"]
    calls = [tuple(ToolCall(name=name, fault=fault) for name, fault in each) for each in result["calls"]]
    turns = tuple(replace(turn, calls=each) for turn, each in zip(episode.turns, calls, strict=True))
    stop = StopReason.TERMINATED if result["terminated"] else StopReason.TURN_LIMIT
    return replace(episode, turns=turns, outcome=result["outcome"], stop=stop)


def shop_spec() -> EnvironmentSpec:
    """The shop, with the customers of the native one, taken by the agent above."""
    service = GRADERS["service"]

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return service.rewards([native(each) for each in episodes])

    grader = Grader(name="service", compute=compute, weights=service.weights, per_turn=True)
    spec = agent_spec(shop, load("shop"), [grader], name="foreign-shop")
    return replace(spec, language=load("shop").language)
