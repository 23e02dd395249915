"""Memory and CPU time of one GRPO step with a vocabulary of 152,000 words: Gradus against TRL.

29 million parameters (nine tenths of them the vocabulary), one prompt of 512 tokens, 8 members, 256 new tokens, float32, one thread,
default settings; TRL computes 2 rows a pass. Each side runs in a process of its own. Peak memory is the process's, model included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from gpu import Size, build, prompts_of, sample, trl_step

from gradus.training.config import GrpoConfig
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.update import UpdateOptions, policy_update

CONFIG = transformers.Qwen2Config(
    hidden_size=176,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=2,
    intermediate_size=704,
    vocab_size=151_936,
    tie_word_embeddings=True,
    max_position_embeddings=1024,
)
SIZE = Size(prompts=1, members=8, prompt=512, new=256, runs=2, device="cpu", dtype=torch.float32)


def our_seconds(runs: int) -> float:
    """Median CPU seconds of a step, after one that is not counted."""
    config = GrpoConfig(
        groups=SIZE.prompts, group_size=SIZE.members, max_turns=1, device="cpu", sampling={"max_new_tokens": SIZE.new}
    )
    loaded = prepare_model(build(CONFIG, "cpu", torch.float32), config)
    optimizer = make_optimizer(loaded.model, config)
    prompts, chance = prompts_of(SIZE, CONFIG.vocab_size), torch.Generator().manual_seed(0)
    seconds: list[float] = []
    for run in range(runs + 1):
        started = time.process_time()
        sampled = sample(loaded, SIZE, prompts, seed=run)
        rolled = [replace(one, advantages=torch.randn(1, generator=chance).expand(one.actions)) for one in sampled]
        between = time.process_time()
        policy_update(loaded, optimizer, rolled, config, 1e-6, options=UpdateOptions(key=(run,)))
        seconds.append(time.process_time() - started)
        print(f"sample {between - started:.1f} s, train {time.process_time() - between:.1f} s", file=sys.stderr)
    return statistics.median(seconds[1:])


def trl_seconds(runs: int) -> float:
    """The same by TRL."""
    with tempfile.TemporaryDirectory() as folder:
        return trl_step(CONFIG, replace(SIZE, runs=runs), Path(folder), rows=2, clock=time.process_time)["step_seconds"]


def alone(side: str, runs: int) -> dict[str, float]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--only", side, "--runs", str(runs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure both and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("ours", "trl"), help="one side, in this process")
    parser.add_argument("--runs", type=int, default=SIZE.runs, help="measured steps of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        seconds = our_seconds(options.runs) if options.only == "ours" else trl_seconds(options.runs)
        # Not getrusage: its figure begins with what the parent held when it forked.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(json.dumps({"seconds": seconds, "peak_mib": int(status["VmHWM"].split()[0]) / 1024}))
        return
    ours, theirs = alone("ours", options.runs), alone("trl", options.runs)
    print(f"{'':8}{'CPU s a step':>14}{'peak MiB':>12}")
    for name, row in (("Gradus", ours), ("TRL", theirs)):
        print(f"{name:8}{row['seconds']:14.1f}{row['peak_mib']:12.0f}")
    for name, key, unit in (("vocabulary_memory", "peak_mib", "MiB"), ("vocabulary_step", "seconds", "CPU s a step")):
        line = {"name": name, "ratio": round(theirs[key] / ours[key], 3), "ours": ours[key], "other": theirs[key]}
        print(json.dumps({**line, "unit": unit, "runs": options.runs}))


if __name__ == "__main__":
    main()
