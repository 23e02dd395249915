"""What the way through an OpenAI client costs: the shop as an environment against the shop as an agent, by the number of agents at once.

Both have the same model, seeds and customers, so they say the same tokens, which is checked. A step is a rollout, its credit and its
update, in seconds of CPU: the threads of a client hand over to each other, so a busy machine makes a clock's seconds worthless. The way has a
price per call, so its share of a step shrinks as the model grows.

    python benchmarks/agents_overhead.py [--runs 5] [--hidden 128]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _shared import print_line

from gradus.core import EnvironmentSpec
from gradus.environments import load
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.engine.update import policy_update

AGENT = Path(__file__).parents[1] / "examples" / "agents" / "shop_agent.py"
CALLS = ('{"name": "ask", "arguments": {"about": "reason"}}', '{"name": "ask", "arguments": {"about": "wish"}}')
SAMPLING = SamplingConfig(max_new_tokens=24, grammar=True)  # random weights would seldom spell a call


class Step:
    """One step of training, timed by part."""

    def __init__(self, spec: EnvironmentSpec, loaded: LoadedModel, episodes: int) -> None:
        self.spec, self.loaded, self.episodes = spec, loaded, episodes
        self.policy = LocalPolicy(loaded, SAMPLING, grammar=[(*CALLS, "done")])
        members = min(episodes, 8)
        self.config = GrpoConfig(groups=max(1, episodes // 8), group_size=max(2, members), sampling=SAMPLING)
        self.optimizer = torch.optim.SGD(loaded.model.parameters(), lr=0.0)  # weights stay: all steps do the same work

    def __call__(self, seed: int) -> tuple[float, float, list[Any]]:
        """Take the step; returns CPU seconds of the whole and of the rollout, and the tokens of all turns."""
        started = time.process_time()
        count = max(1, self.episodes // 8)
        tasks = [self.spec.train_task(seed * 100 + index) for index in range(count)]
        result = roll_out(self.spec, self.policy, tasks, group_size=min(self.episodes, 8), seed=seed)
        rolled = time.process_time() - started
        grader = self.spec.grader()
        config = self.config.resolved(grader)
        credited = credit_groups(result.groups, config, self.loaded.renderer, weights=grader.weights)
        if any(sample.live for sample in credited):
            policy_update(self.loaded, self.optimizer, credited, self.config, 0.0)
        return time.process_time() - started, rolled, [t.tokens for each in result.episodes for t in each.turns]


def compared(loaded: LoadedModel, episodes: int, runs: int) -> dict[str, Any]:
    """Times both, run by run in turn."""
    shop = load("shop")
    shop = replace(shop, stepping=replace(shop.stepping, by_content=True))  # as an agent's turns are drawn
    ours, foreign = (Step(spec, loaded, episodes) for spec in (shop, load(f"{AGENT}:spec")))
    for step in (ours, foreign):
        step(0)  # the first one warms up
    times: list[tuple[float, ...]] = []
    for seed in range(1, runs + 1):
        (a, rolled_a, tokens), (b, rolled_b, others) = ours(seed), foreign(seed)
        assert tokens == others, "the agent and the environment say the same tokens"
        times.append((a, b, 1000 * (rolled_b - rolled_a) / len(tokens), b / a))
    columns = [statistics.median(column) for column in zip(*times, strict=True)]
    return dict(zip(("environment", "agent", "ms_per_call", "ratio"), columns, strict=True)) | {"agents": episodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = load("shop").language.vocabulary
    assert vocabulary is not None
    size = NanoConfig(
        hidden_size=options.hidden,
        layers=options.layers,
        heads=4,
        kv_heads=2,
        intermediate_size=3 * options.hidden,
        context=1024,
    )
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_model(make_nano(Path(folder) / "nano", vocabulary(), size, seed=0))
        parameters = sum(each.numel() for each in loaded.model.parameters())
        print(f"{parameters:,} parameters; CPU seconds of a step, median of {options.runs}")
        print(f"{'agents':>8}{'environment':>13}{'agent':>9}{'ratio':>8}{'ms a call':>11}")
        rows = [compared(loaded, episodes, options.runs) for episodes in (1, 8, 32)]
        for row in rows:
            print(
                f"{row['agents']:>8}{row['environment']:>13.3f}{row['agent']:>9.3f}{row['ratio']:>8.2f}{row['ms_per_call']:>11.2f}"
            )
    last = rows[-1]
    figures = {"ratio": last["ratio"], "ours": last["agent"], "other": last["environment"]}
    unit = "CPU seconds a step of 32 agents"
    print_line("agents_overhead", **figures, unit=unit, runs=options.runs, table=rows)


if __name__ == "__main__":
    main()
