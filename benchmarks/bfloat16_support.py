"""What bfloat16 costs or saves on this CPU: a training pass and a step of Muon in float32 and in bfloat16, in turn.

The model is that of the recipe `rhythm`. Where the CPU has instructions for bfloat16, the ratio is what `autocast = "auto"` saves; where it
has none, what it avoids. The last line is JSON.

    python benchmarks/bfloat16_support.py [--runs 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from gradus.policies.local.cpu.support import has_fast_bfloat16
from gradus.training.engine.optimizers import Float32Muon

ROWS, LENGTH = 16, 200


def training_pass(model: LlamaForCausalLM, ids: torch.Tensor, *, narrow: bool) -> Callable[[], None]:
    """Forward and backward of all rows, in bfloat16 around float32 weights or in float32."""

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=512,
        hidden_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=512,
    )
    model = LlamaForCausalLM(shape)
    ids = torch.randint(512, (ROWS, LENGTH))
    matrices = [nn.Parameter(p.detach().clone()) for p in model.model.layers.parameters() if p.dim() == 2]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    jobs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "training pass": (training_pass(model, ids, narrow=False), training_pass(model, ids, narrow=True)),
        "step of Muon": (Float32Muon(matrices).step, torch.optim.Muon(matrices).step),
    }
    instructions = has_fast_bfloat16(torch.device("cpu"))
    table = Table("", "float32, s", "bfloat16, s", "bfloat16 / float32")
    result: dict[str, float | bool] = {"instructions": instructions}
    for name, ways in jobs.items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(given.runs + 1):
            for way, taken in zip(ways, seconds, strict=True):
                began = time.perf_counter()
                way()
                taken.append(time.perf_counter() - began)
        wide, narrow = (statistics.median(taken[1:]) for taken in seconds)  # the first ones warm up
        table.add_row(name, f"{wide:.3f}", f"{narrow:.3f}", f"{narrow / wide:.2f}")
        result[name] = narrow / wide
    Console().print("instructions for bfloat16:", "yes" if instructions else "none", table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
