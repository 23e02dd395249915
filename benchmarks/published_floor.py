"""One GRPO step of SmolLM2-135M-Instruct beside its own matrix products: the step of published_beside_trl.py, taken apart.

    python benchmarks/published_floor.py --model FILE.gguf [--steps 4] [--threads 2] [--bf16]

The products are those of all linear layers and the head, at the step's own numbers of rows: forward, and two of the same size backward; in
sampling one pass over the prompts and one a token. Attention, norms, the loss and the optimizer are not in them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _against_trl import OurSteps
from published_beside_trl import GROUPS, NEW, QUESTIONS, RATE, SIZE, spec
from torch import nn

from gradus.policies.local.cpu.float32_linear import product
from gradus.policies.local.gguf import dequantized, is_gguf
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.config import GrpoConfig

Shape = tuple[int, int, int]  # rows, width in, width out


def seconds_of(shapes: Sequence[Shape], dtype: torch.dtype) -> float:
    """Seconds of one product of each shape; a shape that comes again is measured once, as the median of five."""
    known: dict[Shape, float] = {}
    for shape in dict.fromkeys(shapes):
        rows, inner, outer = shape
        left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(outer, inner, dtype=dtype)
        taken = []
        for _ in range(6):
            began = time.perf_counter()
            product(left, right)
            taken.append(time.perf_counter() - began)
        known[shape] = statistics.median(taken[1:])
    return sum(known[shape] for shape in shapes)


def floors(model: nn.Module, prompt: int, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of the products of sampling and of training. ``prompt``: tokens of all prompts of a step together."""
    linear = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    layers = [each.weight.shape for name, each in linear if "lm_head" not in name]
    words, width = next(each.weight.shape for name, each in linear if "lm_head" in name)
    answers = GROUPS * SIZE
    rows = prompt + answers * NEW
    trained: list[Shape] = []
    for count, (out, inner) in [*((rows, shape) for shape in layers), (answers * NEW, (words, width))]:
        trained += [(count, inner, out), (count, out, inner), (inner, count, out)]
    one = [(answers, inner, out) for out, inner in layers] + [(answers, width, words)]
    sampled = [(prompt, inner, out) for out, inner in layers] + one * NEW
    return {"policy": seconds_of(sampled, dtype), "train": seconds_of(trained, dtype)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast in bfloat16")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = dequantized(given.model) if is_gguf(given.model) else Path(given.model)
    config = GrpoConfig(
        groups=GROUPS, group_size=SIZE, max_steps=given.steps + 1, lr=RATE, sampling=SamplingConfig(max_new_tokens=NEW),
        autocast=given.bf16, validation_every=0, store_every=0, device="cpu",
    )  # fmt: skip
    loaded = load_model(model, device="cpu")
    prompt = sum(len(loaded.renderer.first("", question)) for question in QUESTIONS[:GROUPS])
    with tempfile.TemporaryDirectory() as folder:
        ours, alone = OurSteps(model, spec(), config, Path(folder)), []
        for _ in range(given.steps + 1):  # in turn, so that a busy moment meets both
            ours()
            alone.append(floors(loaded.model, prompt, torch.bfloat16 if given.bf16 else torch.float32))
    line = {}
    for part in ("policy", "train"):
        mine = statistics.median(record["seconds"][part] for record in ours.records[1:])
        other = statistics.median(each[part] for each in alone[1:])
        line[part] = {"ours": round(mine, 2), "products": round(other, 2), "ratio": round(mine / other, 2)}
        print(f"{part}: {mine:.2f} s, its products alone {other:.2f} s, ratio {mine / other:.2f}")
    print(json.dumps({"name": "published_floor", "ratio": line["train"]["ratio"], **line, "unit": "seconds"}))


if __name__ == "__main__":
    main()
