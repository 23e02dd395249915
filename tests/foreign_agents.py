"""Agents of the tests: loops over an OpenAI client, and their tasks."""

from pathlib import Path
from typing import Any

import torch

from gradus.core import EnvironmentSpec, Observation
from gradus.environments import load
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.scripted import FunctionPolicy, Script
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.engine.update import policy_update

EXAMPLES = Path(__file__).parents[1] / "examples" / "agents"
ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 41)]


async def ask(client: Any, *messages: tuple[str, str], **options: Any) -> str:
    said = [{"role": role, "content": text} for role, text in messages]
    reply = await client.chat.completions.create(model="any", messages=said, **options)
    return reply.choices[0].message.content


def length(completions: list[str], **_: Any) -> list[float]:
    """The longer the better: two members of a group seldom get the same."""
    return [float(len(text)) for text in completions]


def shop_spec() -> EnvironmentSpec:
    """The shop, taken by an agent that does what its environment does."""
    return load(f"{EXAMPLES / 'shop_agent.py'}:spec")


TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


def _call_first(seen: Observation, script: Script) -> str:
    heard = any(message.role == "tool" for message in seen.messages)
    return "it is 4" if heard else '{"name": "add", "arguments": {"a": 2}}'


CALLER = FunctionPolicy("caller", _call_first)


def gradient(loaded: LoadedModel, groups: Any, credit: Any, *, grammar: bool = True) -> torch.Tensor:
    """Plain descent with lr 1 moves the weights by the gradient."""
    settings = GrpoConfig(
        groups=4, group_size=4, max_turns=11, sampling=SamplingConfig(max_new_tokens=24, grammar=grammar), credit=credit
    )
    grader = load("shop").grader()
    credited = credit_groups(groups, settings.resolved(grader), loaded.renderer, weights=grader.weights)
    before = [parameter.detach().clone() for parameter in loaded.model.parameters()]
    policy_update(loaded, torch.optim.SGD(loaded.model.parameters(), lr=1.0), credited, settings, 1.0)
    moved = [old - new.detach() for old, new in zip(before, loaded.model.parameters(), strict=True)]
    with torch.no_grad():
        for parameter, old in zip(loaded.model.parameters(), before, strict=True):
            parameter.copy_(old)
    return torch.cat([part.flatten() for part in moved])
