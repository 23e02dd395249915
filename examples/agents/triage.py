# %% [markdown]
# # Train your agent
# An agent is any code that talks to an OpenAI client. This one asks the model twice, in two roles, and its own code stands between:
# which department takes a letter, and what that department does about it. Gradus trains the model behind the client.

# %%
import os

import gradus

DEPARTMENTS = {"broken": "repair", "late": "delivery", "wrong": "returns"}
ACTIONS = {"new": "replace", "old": "refuse", "gift": "refund"}
ITEMS = ["lamp", "chair", "phone", "clock", "table", "radio", "shoes", "coat", "book", "bike", "desk", "kettle"]
COLORS = ["red", "green", "blue", "white", "black", "brown"]
TASKS = [
    {"question": f"the {color} {item} is {problem} and {age}", "department": department, "action": action}
    for color in COLORS
    for item in ITEMS
    for problem, department in DEPARTMENTS.items()
    for age, action in ACTIONS.items()
]
QUICK = "QUICK" in os.environ


# %% [markdown]
# The agent. `task` is a row, `client` an `openai.AsyncOpenAI`; what it returns is its result. An agent of yours reads no answers from its
# task either: reward functions get those columns, so leave them alone.


# %%
async def triage(task, client):
    """Find the department for a letter, and let it decide."""

    async def ask(role: str, text: str) -> str:
        messages = [{"role": "system", "content": role}, {"role": "user", "content": text}]
        reply = await client.chat.completions.create(model="policy", messages=messages)
        return reply.choices[0].message.content.strip()

    department = await ask("department", task["question"])
    if department not in DEPARTMENTS.values():  # nobody can be asked
        return {"department": department, "action": None}
    return {"department": department, "action": await ask(department, task["question"])}


# %% [markdown]
# The rewards, in TRL's signature. `result` is what the agent returned.


# %%
def right(result, department, action, **_):
    """Half for the department, half for what it does."""
    return [
        0.5 * (each["department"] == wanted) + 0.5 * (each["action"] == due)
        for each, wanted, due in zip(result, department, action, strict=True)
    ]


# %% [markdown]
# A model of random weights knows no words, so a teacher comes first. This one knows the trade, and guesses half of the time. The
# first call has one message of the user; the second has a system prompt of its own, so it shows messages.


# %%
def careless(seen, script):
    """The right word, or any that fits the role."""
    words = ACTIONS if seen.messages else DEPARTMENTS
    text = seen.messages[-1].content if seen.messages else seen.text
    if script.rng.random() < 0.5:
        return script.rng.choice(sorted(words.values()))
    return next(word for key, word in words.items() if key in text.split())


# %% [markdown]
# The model is made from the words of the tasks. SFT teaches it the words, and GRPO what the reward wants.

# %%
if __name__ == "__main__":
    desk = gradus.agent(triage, TASKS, rewards=[right], teacher=gradus.FunctionPolicy("careless", careless))
    run = gradus.train(
        None,
        desk,
        steps=4 if QUICK else 80,
        out=os.environ.get("OUT", "runs/triage"),
        settings={
            "model.nano": {"hidden_size": 64, "layers": 2, "heads": 4, "intermediate_size": 192, "context": 128},
            "teach.episodes": 64 if QUICK else 1500,
            "sft.optimizer": "muon",
            "sft.epochs": 6,
            "grpo.sampling.max_new_tokens": 4,
        },
    )
    print(run)
