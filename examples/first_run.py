# %% [markdown]
# # A first run
#
# Audit a grader, train a small model from nothing, and see whether it got better. About five minutes; `QUICK=1` takes seconds.

# %%
import os

import gradus

quick = bool(os.environ.get("QUICK"))

# %% [markdown]
# An environment has graders. `format-only` gives its reward for tags alone. The audit finds out without training anything.

# %%
print(gradus.audit("arithmetic", grader="format-only", episodes=20, budget=1200))

# %% [markdown]
# Episodes can be looked at before there is a model. `gold` knows the answer, `no-carry` forgets to carry.

# %%
episode = gradus.roll_out("arithmetic", "no-carry", episodes=1).episodes[0]
assert episode.reward is not None
print(episode.turns[0].observation, "->", episode.turns[0].action, "reward", episode.reward.value)

# %% [markdown]
# `train` makes a nano model if no model is given, warms it up on a teacher's answers, trains it with GRPO, and compares what came
# out with what went in, on sums that were never trained on. The same call goes on where it stopped.

# %%
result = gradus.train(None, "arithmetic", out=os.environ.get("OUT", "runs/first"), quick=quick)
result  # noqa: B018  in a notebook this is the table of results

# %%
print("the report:", result.report(show=False))
