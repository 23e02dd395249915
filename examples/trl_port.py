# %% [markdown]
# # A TRL script, ported
#
# The script before, for TRL's trainer:
#
# ```python
# from datasets import load_dataset
# from trl import GRPOConfig, GRPOTrainer
#
# config = GRPOConfig(num_generations=8, max_completion_length=4, learning_rate=1e-3, max_steps=40, beta=0.01)
# data = load_dataset("json", data_files="rows.jsonl")["train"]
# GRPOTrainer("MODEL", reward_funcs=[right, brief], args=config, train_dataset=data).train()
# ```

# %%
import os
from itertools import product

import gradus

# %% [markdown]
# ## The rewards stay
#
# They have TRL's signature: lists of completions and of every column, by name.


# %%
def right(completions, answer, **columns):
    """1 for the answer."""
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def brief(completions, **columns):
    """1 for one word."""
    return [float(len(text.split()) == 1) for text in completions]


# %% [markdown]
# ## The rows stay
#
# TRL asks the column `prompt`. Gradus does too, or `question`. A row says where somebody looks, and four turns.

# %%
POINTS = ["north", "east", "south", "west"]
TURNS = {"right": 1, "around": 2, "left": 3}
rows = [
    {"prompt": f"{start} : {' '.join(turns)}", "answer": POINTS[(number + sum(TURNS[turn] for turn in turns)) % 4]}
    for number, start in enumerate(POINTS)
    for turns in product(TURNS, repeat=4)
]
rows[:2]

# %% [markdown]
# ## One step more than before: the audit
#
# `brief` alone pays for any word. Is that less than being right pays?

# %%
print(gradus.audit(rows, rewards=[right, (brief, 0.2)]))

# %% [markdown]
# ## The settings have other names
#
# `reward_weights` stand beside the rewards. [TRL's names and ours](../trl_names.md) has every setting.

# %%
settings = {
    "grpo.group_size": 8,  # num_generations
    "grpo.sampling.max_new_tokens": 4,  # max_completion_length
    "grpo.lr": 1e-3,  # learning_rate
    "grpo.kl_coef": 0.01,  # beta
}
result = gradus.train(
    None,  # or "MODEL"; a nano model is warmed up on the answers first
    rows,
    rewards=[right, (brief, 0.2)],
    steps=4 if os.environ.get("QUICK") else 40,  # max_steps
    settings=settings,
    out=os.environ.get("OUT", "runs/port"),
    quick=bool(os.environ.get("QUICK")),
)
result  # noqa: B018  in a notebook this is the table of results

# %% [markdown]
# TRL's script ends with a curve. This one ends with a comparison on rows that were never trained on.
