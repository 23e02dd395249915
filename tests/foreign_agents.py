"""Agents of the tests: loops over an OpenAI client, and their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradus.core import EnvironmentSpec
from gradus.environments import load

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
