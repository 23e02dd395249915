# %% [markdown]
# # A published model learns to call a tool
# The agent must look a price up before it can answer. SmolLM2-135M-Instruct never calls the tool by itself, so a teacher shows it:
# one that looks up half of the time and guesses otherwise. GRPO then makes it look up always. It earned 0.00 before, 0.68 when taught
# and 0.86 after 12 steps (28 held-out things, one seed), in a quarter of an hour on one busy core.

# %%
import json
import os
import random

import gradus

COLORS = ["red", "green", "blue", "white", "black", "brown", "grey", "pink"]
ITEMS = ["lamp", "chair", "phone", "clock", "table", "radio", "coat", "book", "bike", "kettle", "sofa", "mirror"]
RULES = "Look the price up with the tool. Then answer with the number alone."
PRICE = {
    "name": "price",
    "description": "The price of a thing.",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
}
TOOLS = [{"type": "function", "function": PRICE}]
QUICK = "QUICK" in os.environ


def tasks(seed: int, rounds: int = 4) -> list[dict[str, object]]:
    """Each thing some times, each time at another price."""
    draw = random.Random(seed)
    things = [f"{color} {item}" for color in COLORS for item in ITEMS]
    return [
        {"question": f"What does the {thing} cost?", "thing": thing, "cost": draw.randrange(2, 90)}
        for thing in things
        for _ in range(rounds)
    ]


# %% [markdown]
# The agent: an ordinary loop around an OpenAI client. The model must name the right thing, and then say what it heard.


# %%
async def clerk(task, client):
    """Answers after at most two calls of the tool."""
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": task["question"]}]
    for _ in range(3):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
        reply = answer.choices[0].message
        if not reply.tool_calls:
            return reply.content
        messages.append(reply.model_dump(exclude_none=True))
        for call in reply.tool_calls:
            is_known = json.loads(call.function.arguments).get("thing") == task["thing"]
            price = str(task["cost"]) if is_known else "unknown"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": price})
    return "no answer"


def right(result, cost, **_):
    """1 for the price and nothing else."""
    return [float(str(text).strip() == str(price)) for text, price in zip(result, cost, strict=True)]


def half(seen, script):
    """Looks up half of the time, guesses otherwise, and says what the tool said."""
    if seen.messages and seen.messages[-1].role == "tool":
        return seen.messages[-1].content
    if script.rng.random() < 0.5:
        thing = seen.text.removeprefix("What does the ").removesuffix(" cost?")
        return json.dumps({"name": "price", "arguments": {"thing": thing}})
    return str(script.rng.randrange(2, 90))


# %%
if __name__ == "__main__":
    desk = gradus.agent(clerk, tasks(seed=1), rewards=[right], teacher=gradus.FunctionPolicy("half", half))
    run = gradus.train(
        os.environ["MODEL"],
        desk,
        steps=1 if QUICK else 12,
        out=os.environ.get("OUT", "runs/price"),
        anyway=QUICK,
        settings={
            "model.tool_calls": "json",  # its chat template knows no tools
            "teach.enabled": True,
            "teach.episodes": 4 if QUICK else 96,
            "sft.epochs": 1 if QUICK else 4,
            "sft.batch_size": 2 if QUICK else 16,
            "grpo.sampling.max_new_tokens": 32,
        },
    )
    print(run)
