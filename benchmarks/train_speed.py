"""The training pass alone: a tree of shared prefixes against one packed row a group and against plain rows.

Two shapes: one-turn (8 prompts of 160 tokens, 8 members, 32 new tokens; 2.3 million parameters) and a week of Rhythm (8 members,
a shared prompt of 170 tokens, 28 turns of 17 tokens, 5 of them sampled; 0.9 million parameters). Float32, two threads.
Shares are of the matrix-product peak measured in this run; the arithmetic counted is what the tree needs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _flops import training_flops
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gradus.core import Vocabulary
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.tree_support import tree_attention

WORDS = tuple(f"w{number}" for number in range(249))
SHAPES = {
    "one turn": (NanoConfig(hidden_size=192, layers=4, heads=6, intermediate_size=768), 8, 160, 1, 0, 32),
    "rhythm": (NanoConfig(hidden_size=128, layers=4, heads=4, intermediate_size=384), 4, 170, 28, 12, 5),
}
SIZE, RUNS, BUDGET = 8, 5, 4096


def sequences(groups: int, prompt: int, turns: int, context: int, action: int) -> list[TrainingSample]:
    """Groups of random tokens; every member reads ``context`` and samples ``action`` tokens a turn behind the shared prompt."""
    rng = np.random.default_rng(0)
    result: list[TrainingSample] = []
    for group in range(groups):
        shared = rng.integers(300, 500, prompt)
        for _ in range(SIZE):
            length = turns * action + (turns - 1) * context
            positions = np.concatenate(
                [prompt + turn * (action + context) + np.arange(action) for turn in range(turns)]
            )
            zeros = torch.zeros(len(positions), dtype=torch.int64)
            result.append(
                TrainingSample(
                    key=(group, 0),
                    episode=len(result),
                    ids=torch.from_numpy(np.concatenate([shared, rng.integers(300, 500, length)])),
                    positions=torch.from_numpy(positions),
                    logprobs=zeros.double(),
                    turns=zeros,
                    offsets=zeros,
                )
            )
    return result


def by_microbatch(loaded: LoadedModel, batches: list[MicroBatch]) -> Callable[[], None]:
    """Forward and backward as the trainer does it."""

    def run() -> None:
        with tree_attention(loaded.model):
            for batch in batches:
                score_tokens(loaded.model, batch, SamplingConfig()).logprobs.sum().backward()

    return run


def by_packed_rows(loaded: LoadedModel, result: list[TrainingSample], prompt: int) -> Callable[[], None]:
    """Each group as one row, [prompt, member, member, ...], with a block mask that keeps members apart."""
    groups = [result[start : start + SIZE] for start in range(0, len(result), SIZE)]
    own = len(result[0]) - prompt
    width = prompt + SIZE * own
    member = torch.cat([torch.full((prompt,), -1), torch.arange(SIZE).repeat_interleave(own)])
    position = torch.cat([torch.arange(prompt), (prompt + torch.arange(own)).repeat(SIZE)])
    before = position[None, :] <= position[:, None]
    seen = before & ((member[None, :] == member[:, None]) | (member[None, :] == -1))
    mask = torch.zeros(width, width).masked_fill(~seen, float("-inf"))[None, None]
    jobs: list[tuple[Tensor, Tensor, Tensor]] = []
    for group in groups:
        ids = torch.cat([group[0].ids[:prompt], *[one.ids[prompt:] for one in group]])[None]
        target = torch.cat([one.ids[one.positions] for one in group])
        source = [one.positions - 1 + number * own for number, one in enumerate(group)]
        for number, one in enumerate(group):
            source[number] = torch.where(one.positions == prompt, prompt - 1, source[number])
        jobs.append((ids, torch.from_numpy(np.concatenate(source)), target))

    def run() -> None:
        for ids, source, target in jobs:
            out = loaded.model(input_ids=ids, attention_mask=mask, position_ids=position[None], logits_to_keep=source)
            out.logits[0].log_softmax(-1).gather(1, target[:, None]).sum().backward()

    return run


def peak() -> float:
    """Floating-point operations per second of large float32 products, best of many."""
    left, best = torch.randn(1024, 1024), float("inf")
    for _ in range(20):
        started = time.perf_counter()
        left @ left
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best


def main() -> None:
    """Measure in turn, so that all three ways meet the same machine."""
    torch.set_num_threads(2)
    table = Table(title=f"training pass, {peak() / 1e9:.0f} GFLOP/s at peak")
    for column in ("shape", "way", "seconds", "GFLOP/s", "share of peak"):
        table.add_column(column)
    ratio = 0.0
    for name, (shape, groups, prompt, turns, context, action) in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="gradus-bench-") as folder:
            loaded = load_model(make_nano(Path(folder) / "model", Vocabulary(words=WORDS), shape), device="cpu")
        result = sequences(groups, prompt, turns, context, action)
        trees = microbatches(result, budget=BUDGET)
        ways = {
            "tree": by_microbatch(loaded, trees),
            "packed row a group": by_packed_rows(loaded, result, prompt),
            "plain rows": by_microbatch(loaded, microbatches(result, budget=BUDGET, share=False)),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(RUNS + 1):
            for way, work in ways.items():
                loaded.model.zero_grad()
                started = time.perf_counter()
                work()
                if run:
                    seconds[way].append(time.perf_counter() - started)
        flops, top = training_flops(loaded.model, trees), peak()
        for way, taken in seconds.items():
            median = statistics.median(taken)
            table.add_row(name, way, f"{median:.3f}", f"{flops / median / 1e9:.0f}", f"{flops / median / top:.0%}")
        ratio = statistics.median(seconds["plain rows"]) / statistics.median(seconds["tree"])
    Console(width=100).print(table)
    print(json.dumps({"name": "rhythm_rows_over_tree", "ratio": round(ratio, 3), "unit": "x", "runs": RUNS}))


if __name__ == "__main__":
    main()
