"""An agent of the OpenAI Agents SDK (pip install openai-agents): gradus run examples/agents/openai_agents.py:agent --model MODEL"""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
PRICES = {"lamp": 20, "chair": 45, "phone": 300, "clock": 15, "radio": 60, "desk": 120}
tasks = [
    {"question": f"What do {count} {item}s cost?", "answer": str(count * price)}
    for item, price in PRICES.items()
    for count in range(2, 12)
]


@function_tool
def price(item: str) -> str:
    """Look up what one piece of an item costs."""
    return str(PRICES.get(item, "unknown"))


async def agent(task, client):
    """Answer a question about prices with a tool."""
    clerk = Agent(
        name="clerk",
        instructions="Answer with a number.",
        model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
        tools=[price],
    )
    result = await Runner.run(clerk, task["question"], max_turns=4)
    return result.final_output


def right(result, answer, **_):
    """1 if the answer holds the right number."""
    return [float(wanted in str(each)) for each, wanted in zip(result, answer, strict=True)]


rewards = [right]
