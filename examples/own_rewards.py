# %% [markdown]
# # Your own rows and rewards
#
# Rows are dictionaries with a question and an answer; a reward is a function with TRL's signature. `QUICK=1` takes seconds.

# %%
import os

import gradus

rows = [{"question": f"{a} {b} {c}", "answer": str(max(a, b, c))} for a in range(8) for b in range(8) for c in range(8)]


def right(completions, answer, **columns):
    """1 for the answer."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def brief(completions, **columns):
    """1 for one word."""
    return [float(len(text.split()) == 1) for text in completions]


# %% [markdown]
# Rewards have weights. Try them first: what do the gold answer and random answers get?

# %%
spec = gradus.one_turn(rows, rewards=[right, (brief, 0.2)])
print(gradus.evaluate("gold", "random", env=spec, episodes=30))

# %% [markdown]
# Then train: a nano model without a model's name, or `gradus.train("Qwen/Qwen2.5-0.5B-Instruct", ...)`.

# %%
result = gradus.train(
    None,
    rows,
    rewards=[right, (brief, 0.2)],
    out=os.environ.get("OUT", "runs/largest"),
    quick=bool(os.environ.get("QUICK")),
)
result  # noqa: B018  in a notebook this is the table of results
