# %% [markdown]
# # A published model, before it is trained
#
# What can a published model do already, and does it only need to be asked better? That is the first question before any training.
# A minute or two on two cores. `MODEL` is a folder, a name of the Hub or a GGUF file; `python examples/published/smollm2.py` fetches
# SmolLM2-135M-Instruct once, and prints the file's name.

# %%
import os

import gradus

MODEL = os.environ["MODEL"]  # MODEL=$(python examples/published/smollm2.py) python examples/published_model.py

# %% [markdown]
# Rows with a question and an answer, and a reward that takes the last number of a completion.

# %%
rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(1, 16) for b in range(1, 16)]


def sums(system_prompt):
    """The same tasks, asked under a system prompt."""
    return gradus.one_turn(rows, ["final_answer"], name="sums", system_prompt=system_prompt)


print(gradus.audit(sums(""), episodes=20))

# %% [markdown]
# How three answers begin, and what they earn.

# %%
NUMBER = "You are a calculator. Write the result as a number and nothing else."
for episode in gradus.roll_out(sums(NUMBER), MODEL, episodes=3, condition="held-out").episodes:
    turn = episode.turns[0]
    assert episode.reward is not None
    print(repr(turn.observation), "->", repr(turn.action[:60]), "reward", episode.reward.value)

# %% [markdown]
# The same tasks under three prompts, greedy. What a prompt brings, training need not bring.

# %%
PROMPTS = {
    "friendly": "Reply in a friendly sentence.",
    "number": NUMBER,
    "examples": "Answer as in these lines.\n3 + 4 = 7\n12 + 5 = 17\n9 + 9 = 18",
}
for name, prompt in PROMPTS.items():
    scores = gradus.evaluate(
        MODEL, env=sums(prompt), episodes=20, conditions=["held-out"], temperature=0, max_new_tokens=12
    )
    (policy,) = scores.to_json()["conditions"]["held-out"]["policies"].values()
    reward = policy["reward"]
    print(f"{name:9} {reward['mean']:.2f} [{reward['low']:.2f}, {reward['high']:.2f}]")

# %% [markdown]
# What is left can be learned. `make demo-lm` trains this model on small sums by GRPO alone, and compares it with its best prompt.
