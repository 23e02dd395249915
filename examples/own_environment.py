# %% [markdown]
# # An environment of one's own
#
# A number from 0 to 15 is hidden. Every guess is answered by higher or lower. The environment and its grader come first: they are what
# a run needs. A teacher, a view and hints for the audit come after. `gradus run examples/own_environment.py:spec` trains on it, too.

# %%
import os

import gradus
from gradus import Condition, EnvironmentSpec, FunctionPolicy, Grader, Observation, Task
from gradus.core import AuditHints, EpisodeView, Language, Panel, Presentation, ViewPanel, Vocabulary, child_rng

NUMBERS = [str(number) for number in range(16)]


class HigherLower:
    """One instance runs one episode. Randomness comes from the seed alone, so that a group shares it."""

    system_prompt = "Guess the number from 0 to 15 ."

    def reset(self, *, seed=None, **options):
        self.number = child_rng(seed or 0, "number").randrange(16)
        self.turns = 0
        return Observation(text="guess", data={"word": "guess"})

    def step(self, action):
        self.turns += 1
        guess = action.strip()
        if guess not in NUMBERS:  # an invalid action, not an exception
            return Observation(
                text="a number", data={"word": "a number"}, reward=0.0, action_valid=False, action_error="no number"
            )
        right = int(guess) == self.number
        word = "right" if right else "higher" if int(guess) < self.number else "lower"
        return Observation(
            text=word,
            data={"word": word, "guess": int(guess)},
            reward=float(right),
            terminated=right,
            action_data={"guess": int(guess)},
        )

    def outcome(self):
        return {"number": self.number}

    def close(self):
        pass


# %% [markdown]
# A grader returns one number per episode: here 1 for the number, and a little less for each guess. The environment's own return,
# the true reward, only says whether the number was guessed.


# %%
def soon(episodes):
    return [max(0.0, (episode.env_return or 0.0) * (1.1 - 0.1 * len(episode.turns))) for episode in episodes]


# %% [markdown]
# Policies are functions of what is seen. The teacher halves the interval, and guesses somewhere in it every third time, so that GRPO
# has something to improve.


# %%
def halving(seen, script, slip=0.0):
    low, high = script.memory.get("interval", (0, 15))
    if seen.data["word"] == "higher":
        low = max(low, seen.data["guess"] + 1)
    elif seen.data["word"] == "lower":
        high = min(high, seen.data["guess"] - 1)
    script.memory["interval"] = low, high
    return str(script.rng.randint(low, high) if script.rng.random() < slip else (low + high) // 2)


def counting(seen, script):
    script.memory["last"] = script.memory.get("last", -1) + 1
    return str(script.memory["last"])


POLICIES = {
    "halving": lambda _: FunctionPolicy("halving", halving),
    "teacher": lambda _: FunctionPolicy("teacher", lambda seen, script: halving(seen, script, slip=0.34)),
    "counting": lambda _: FunctionPolicy("counting", counting),
    "always": lambda argument: FunctionPolicy(f"always:{argument or 7}", lambda seen, script: argument or "7"),
}


# %% [markdown]
# The view is what the report draws of an episode.


# %%
def view(episode):
    guesses = [turn.action_data.get("guess") for turn in episode.turns]
    lines = ViewPanel(
        kind="lines", title="guesses", series={"guess": guesses}, truth={"guess": episode.outcome["number"]}
    )
    return EpisodeView(title=f"the number was {episode.outcome['number']}", panels=[lines])


spec = EnvironmentSpec(
    name="higher-lower",
    summary="guess a number from 0 to 15; each guess is answered by higher or lower",
    make=HigherLower,
    graders={"soon": Grader(name="soon", summary="1 for the number, 0.1 less a guess", compute=soon, range=(0.0, 1.0))},
    conditions={"main": Condition(name="main", seeds=range(400), summary="numbers that were never trained on")},
    train_task=lambda index: Task(environment="higher-lower", seed=1_000_000 + index),
    max_turns=5,
    policies=POLICIES,
    teacher="teacher",
    true_reward_name="found",
    metrics=lambda episode: {"guesses": float(len(episode.turns))},
    presentation=Presentation(view=view, watched={"guesses": "guesses"}),
    language=Language(
        vocabulary=lambda: Vocabulary(
            words=[*NUMBERS, "Guess", "the", "number", "from", "to", "guess", "higher", "lower", "a", "."]
        )
    ),
    audit=AuditHints(
        panel=Panel(
            ladder=("random", "counting", "teacher", "halving"), reflexes=("counting",), exploits=("always:7",)
        ),
        random_answers=lambda seed: NUMBERS[child_rng(seed, "answer").randrange(16)],
        hidden=["number"],
    ),
)

# %% [markdown]
# Settings are a recipe's keys. What is left out has a default that suits a nano model.

# %%
settings = {
    "model.nano.hidden_size": 64,
    "model.nano.intermediate_size": 192,
    "model.nano.context": 128,
    "teach.episodes": 1000,
    "sft.optimizer": "muon",
    "sft.epochs": 6,
    "grpo.first_task": 1000,
    "grpo.max_steps": 120,
    "grpo.sampling.max_new_tokens": 4,
    "eval.policies": ["teacher", "sft", "grpo", "halving"],
    "eval.episodes": 400,
}

# %%
if __name__ == "__main__":
    quick = bool(os.environ.get("QUICK"))
    print(gradus.audit(spec, episodes=40, budget=4000))
    result = gradus.train(
        None, spec, settings={} if quick else settings, out=os.environ.get("OUT", "runs/higher-lower"), quick=quick
    )
    print("the report:", result.report(show=False))
