"""An agent of smolagents (pip install "smolagents[openai]"): gradus run examples/agents/smol_agents.py:agent --model MODEL"""

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

PRICES = {"lamp": 20, "chair": 45, "phone": 300, "clock": 15, "radio": 60, "desk": 120}
tasks = [
    {"question": f"What do {count} {item}s cost?", "answer": str(count * price)}
    for item, price in PRICES.items()
    for count in range(2, 12)
]


@tool
def price(item: str) -> str:
    """Look up what one piece of an item costs.

    Args:
        item: The name of the item.
    """
    return str(PRICES.get(item, "unknown"))


def agent(task, client):
    """Answer a question about prices with a tool. This framework makes a client of its own, from an address and a key."""
    model = OpenAIServerModel(model_id="policy", api_base=str(client.base_url), api_key=client.api_key)
    clerk = ToolCallingAgent(tools=[price], model=model, max_steps=3, verbosity_level=LogLevel.OFF)
    return str(clerk.run(task["question"]))


def right(result, answer, **_):
    """1 if the answer holds the right number."""
    return [float(wanted in str(each)) for each, wanted in zip(result, answer, strict=True)]


rewards = [right]
