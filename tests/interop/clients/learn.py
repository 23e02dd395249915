"""Trains a model in one client's agent, and prints what it earned before and after.

The agent must call a tool before it can know the answer. A nano model has random weights and three things to say: chance earns about one
in ten. Run as ``python learn.py CLIENT STEPS SEED`` in an environment that has the client's framework.
"""

import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworks import AGENTS, COLORS, INSTRUCTIONS, SAYINGS, TOOL, Sayings

from gradus.core import Language, Vocabulary
from gradus.interop.agents.calls import AgentLimits
from gradus.interop.agents.spec import agent_spec
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus.stats import paired_difference
from gradus.training.config import GrpoConfig
from gradus.training.grpo import train_grpo

SMALL = NanoConfig(hidden_size=64, layers=2, heads=2, kv_heads=2, intermediate_size=128, context=4096)


def right(result: Any, conversation: Any, answer: Any, **_: Any) -> list[float]:
    """1 for the color, if somebody else said it before."""
    heard = [
        any(each["role"] != "assistant" and f"is {wanted}" in str(each["content"]) for each in messages)
        for messages, wanted in zip(conversation, answer, strict=True)
    ]
    return [float(seen and wanted in str(given)) for given, wanted, seen in zip(result, answer, heard, strict=True)]


def learn(name: str, steps: int, seed: int) -> dict[str, Any]:
    """Returns the rewards before and after, and the interval of their difference."""
    draw = random.Random(seed)
    rows = []
    for number in range(400):
        color = draw.choice(COLORS)
        rows.append({"question": f"What color is it? Thing {number}.", "answer": color, "hidden": f"is {color}"})
    limits = AgentLimits(calls=4)  # an agent that imports its framework needs time for its first call
    spec = agent_spec(AGENTS[name], rows, [right], limits=limits)
    words = [*COLORS, *INSTRUCTIONS.split(), "What", "color", "is", "it?", "Thing", *json.dumps(TOOL).split()]
    vocabulary = Vocabulary(words=words, pieces=[chr(code) for code in range(33, 127)])
    client = SAYINGS.get(name, Sayings())
    sayings = [each.removeprefix(client.opening) for each in (client.look, *client.colors, *client.others)]
    spec = replace(spec, language=Language(vocabulary=lambda: vocabulary, grammar=[sayings]))
    sampling = SamplingConfig(max_new_tokens=100, grammar=True)  # the longest saying, letter by letter
    config = GrpoConfig(
        groups=4, group_size=4, max_steps=steps, lr=3e-3, sampling=sampling, validation_every=0, checkpoint_every=steps,
        seed=seed, store_every=0,
    )  # fmt: skip
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        first = make_nano(Path(folder) / "nano", vocabulary, SMALL, seed=seed)
        tasks = spec.tasks(next(iter(spec.conditions)))[:40]

        def earned(model: Path) -> Any:
            policy = LocalPolicy(load_model(model), sampling, grammar=spec.language.grammar)
            return roll_out(spec, policy, tasks, seed=seed, max_turns=config.max_turns).episodes

        before = earned(first)
        print(*({"turns": [turn.action for turn in each.turns]} for each in before[:4]), sep="\n", file=sys.stderr)
        result = train_grpo(load_model(first), spec, config, Path(folder) / "run")
        after = earned(result.final)
    rewards = [[each.reward.value if each.reward else None for each in episodes] for episodes in (after, before)]
    difference = paired_difference(*rewards)
    means = [sum(value or 0.0 for value in values) / len(values) for values in rewards]
    shares = [each.metrics.get("continued_calls") for each in after]
    continued = [share for share in shares if share is not None]
    return {
        "client": name,
        "before": round(means[1], 3),
        "after": round(means[0], 3),
        "low": round(difference.low or 0.0, 3),
        "high": round(difference.high or 0.0, 3),
        "continued_calls": round(sum(continued) / max(1, len(continued)), 3),
        "stops": sorted({str(each.stop) for each in after}),
        "failure": next((str(each.failure.message)[:300] for each in before if each.failure), None),
        "seconds": round(time.monotonic() - started),
    }


if __name__ == "__main__":
    print(json.dumps(learn(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
