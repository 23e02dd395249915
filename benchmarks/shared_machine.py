"""Two processes with two threads each on the same cores: how long a thread spins while it waits decides what is left.

Each process trains the recipe's nano model on rows of tokens, alone and beside a second one, once as libgomp waits by itself
(300,000 rounds) and once as Gradus sets it (``GOMP_SPINCOUNT``). Ways alternate. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

WAYS = {"libgomp": "300000", "gradus": None}
RUNS, STEPS, ROWS, LENGTH = 3, 12, 8, 256


def train() -> None:
    """What each process runs. Prints seconds a step, the first two left out."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(512, (ROWS, LENGTH))
    begun = 0.0
    for step in range(STEPS):
        begun = time.perf_counter() if step == 2 else begun
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print((time.perf_counter() - begun) / (STEPS - 2))


def seconds(way: str, processes: int) -> float:
    """Seconds a step of the slowest process."""
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    if (spins := WAYS[way]) is not None:
        environment["GOMP_SPINCOUNT"] = spins
    command = [sys.executable, "-c", f"import gradus, runpy; runpy.run_path({__file__!r})['train']()"]
    running = [
        subprocess.Popen(command, env=environment | {"OMP_NUM_THREADS": "2"}, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return max(float(process.communicate()[0]) for process in running)


def main() -> None:
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(RUNS):
        for processes in (1, 2):
            for way in WAYS:
                times.setdefault((way, processes), []).append(seconds(way, processes))
    medians = {key: statistics.median(values) for key, values in times.items()}
    for (way, processes), value in medians.items():
        print(f"{way:8} {processes} process{'es' if processes > 1 else ''}: {value:.3f} s a step")
    ratio = medians["libgomp", 2] / medians["gradus", 2]
    print(json.dumps({
        "name": "shared_machine",
        "ratio": ratio,
        "ours": medians["gradus", 2],
        "other": medians["libgomp", 2],
        "unit": "s a step, two processes",
        "runs": RUNS,
        "alone": medians["libgomp", 1] / medians["gradus", 1],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
