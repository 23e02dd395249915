"""An agent of Pydantic AI (pip install "pydantic-ai-slim[openai]"): gradus run examples/agents/pydantic_agent.py:agent --model MODEL"""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

PRICES = {"lamp": 20, "chair": 45, "phone": 300, "clock": 15, "radio": 60, "desk": 120}
tasks = [
    {"question": f"What do {count} {item}s cost?", "answer": str(count * price)}
    for item, price in PRICES.items()
    for count in range(2, 12)
]
clerk = Agent(instructions="Answer with a number.")


@clerk.tool_plain
def price(item: str) -> str:
    """Look up what one piece of an item costs."""
    return str(PRICES.get(item, "unknown"))


async def agent(task, client):
    """Answer a question about prices with a tool."""
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    result = await clerk.run(task["question"], model=model)
    return result.output


def right(result, answer, **_):
    """1 if the answer holds the right number."""
    return [float(wanted in str(each)) for each, wanted in zip(result, answer, strict=True)]


rewards = [right]
