"""The shop of Gradus as somebody else's agent: a loop over an OpenAI client, its tools in this process.

It does what the environment `shop` does, token by token, so it shows what the way through the client costs: gradus run
examples/agents/shop_agent.py:spec
"""

import json
from dataclasses import replace

from gradus.core import Grader, Message, StopReason, ToolCall
from gradus.environments import load
from gradus.environments.tools import ToolEnvironment
from gradus.interop.agents.spec import agent_spec
from gradus_worlds.shop.desk import Desk
from gradus_worlds.shop.graders import GRADERS

TURNS = 10


async def serve(task, client):
    """Serve one customer; returns what became of the case."""
    desk = ToolEnvironment(Desk())
    seen = desk.reset(**task)
    messages = [{"role": "system", "content": desk.system_prompt}, *map(record, seen.messages)]
    calls = []
    for _ in range(TURNS):
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=list(desk.tools))
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        told = tuple(
            ToolCall(name=each.function.name, arguments=json.loads(each.function.arguments), id=each.id)
            for each in said.tool_calls or ()
        )
        text = said.content or ""
        seen = desk.step(Message(role="assistant", content=text, calls=told) if told else text)
        calls.append([[each.name, each.fault] for each in seen.action_calls])
        if seen.terminated:
            break
        messages += map(record, seen.messages)
    outcome = dict(desk.outcome())
    desk.close()
    return {"outcome": outcome, "calls": calls, "finished": seen.terminated}


def record(message):
    """A message as the protocol has it."""
    told = {"tool_call_id": message.call_id} if message.role == "tool" else {}
    return {"role": message.role, "content": message.content, **told}


def native(episode):
    """The episode with what the shop's own grader reads."""
    result = episode.outcome["result"]
    if result is None:  # a limit cut the agent
        return replace(episode, outcome={})
    calls = [tuple(ToolCall(name=name, fault=fault) for name, fault in each) for each in result["calls"]]
    turns = tuple(replace(turn, calls=each) for turn, each in zip(episode.turns, calls, strict=True))
    stop = StopReason.TERMINATED if result["finished"] else StopReason.TURN_LIMIT
    return replace(episode, turns=turns, outcome=result["outcome"], stop=stop)


def spec():
    """The customers, the grader and the teachers of the shop, with the agent above."""
    shop, service = load("shop"), GRADERS["service"]
    grader = Grader(
        name="service",
        compute=lambda episodes: service.rewards([native(each) for each in episodes]),
        weights=service.weights,
        per_turn=True,
        range=service.range,
    )
    made = agent_spec(serve, shop, [grader], name="shop-agent")
    return replace(made, policies=shop.policies, teacher=shop.teacher, language=shop.language)
