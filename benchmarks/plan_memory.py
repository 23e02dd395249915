"""The forecast of memory beside the peak that a process really takes, for six shapes on a CPU.

Each shape is measured in a process of its own: two steps of sampling and training after a small one that warms up, counted from
what the process held before. A ratio is forecast over measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from _shared import print_line, status_kib
from gpu import Size, build, prompts_of, sample

from gradus.runs.forecast.memory import memory_forecast
from gradus.runs.shapes import Hardware, Lengths, read_shape
from gradus.training.config import GrpoConfig
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.update import UpdateOptions, policy_update

CPU = Hardware(name="cpu", kind="cpu", memory=2**36)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, how much it reads and says, and settings of GRPO besides."""

    model: Any
    prompts: int
    members: int
    prompt: int
    new: int
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float32


def llama(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, words: int) -> Any:
    """A config of Llama's."""
    return transformers.LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=words,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )


# Nine tenths of its parameters are the vocabulary's.
MANY_WORDS = transformers.Qwen2Config(
    hidden_size=176,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=2,
    intermediate_size=704,
    vocab_size=151_936,
    tie_word_embeddings=True,
    max_position_embeddings=1024,
)
SMALL_BATCH: dict[str, Any] = {"token_budget": 1024}
FEW: dict[str, Any] = {"prompts": 4, "members": 4, "new": 32}
MANY: dict[str, Any] = {"prompts": 16, "members": 8}
BFLOAT16 = {**SMALL_BATCH, "gradient_checkpointing": True, "dtype": "bfloat16"}
SHAPES = {
    "all weights": Shape(model=llama(256, 6, 4, 4, 1024, 1000), prompt=32, new=40, **MANY),
    "adapters": Shape(
        model=llama(384, 6, 6, 6, 1024, 1000), prompt=32, new=40, settings={**SMALL_BATCH, "lora": {"rank": 8}}, **MANY
    ),
    "mostly weights": Shape(model=llama(640, 8, 8, 2, 2048, 1000), prompt=32, settings={"token_budget": 512}, **FEW),
    "cache": Shape(model=llama(192, 6, 6, 6, 512, 1000), prompt=400, new=16, settings=SMALL_BATCH, **MANY),
    "152,000 words": Shape(model=MANY_WORDS, prompts=1, members=8, prompt=256, new=96),
    "bfloat16": Shape(
        model=llama(512, 6, 8, 2, 1536, 32_000), prompt=64, settings=BFLOAT16, dtype=torch.bfloat16, **FEW
    ),
}


def config_of(shape: Shape) -> GrpoConfig:
    """Settings of a step of this shape."""
    return GrpoConfig.model_validate(
        {
            "groups": shape.prompts,
            "group_size": shape.members,
            "max_turns": 1,
            "device": "cpu",
            "sampling": {"max_new_tokens": shape.new},
            "max_logp_diff": 100.0,
            **shape.settings,
        }
    )


def size_of(shape: Shape) -> Size:
    """The same for the parts that it is made of."""
    sizes = {"prompts": shape.prompts, "members": shape.members, "prompt": shape.prompt, "new": shape.new}
    return Size(**sizes, runs=1, device="cpu", dtype=shape.dtype)


def take_steps(shape: Shape) -> None:
    """Two steps with a fresh model."""
    size = size_of(shape)
    config = config_of(shape)
    loaded = prepare_model(build(shape.model, "cpu", shape.dtype), config)
    optimizer, chance = make_optimizer(loaded.model, config), torch.Generator().manual_seed(0)
    for step in range(2):
        sampled = sample(loaded, size, prompts_of(size, shape.model.vocab_size), seed=step)
        rolled = [replace(one, advantages=torch.randn(1, generator=chance).expand(one.actions)) for one in sampled]
        policy_update(loaded, optimizer, rolled, config, 1e-6, options=UpdateOptions(key=(step,)))


def measured(shape: Shape) -> float:
    """Bytes at the peak of two steps, above what the process held before."""
    small = Shape(model=llama(32, 1, 2, 2, 64, 100), prompts=1, members=2, prompt=16, new=4)
    take_steps(small)  # imports, thread pools
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status_kib("VmRSS")
    take_steps(shape)
    return 1024.0 * (status_kib("VmHWM") - before)


def forecast(shape: Shape) -> float:
    """Bytes that the forecast says."""
    with tempfile.TemporaryDirectory() as folder:
        shape.model.save_pretrained(folder)
        size = read_shape(folder)
    longest = Lengths(prompt=max(map(len, prompts_of(size_of(shape), 1000))), answer=shape.new)
    return sum(memory_forecast(size, config_of(shape), longest, CPU).memory.values())


def main() -> None:
    """Measure every shape and print the table and the line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SHAPES), help="measure one shape in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        shape = SHAPES[options.only]
        peak = measured(shape)
        print(json.dumps({"measured": peak, "forecast": forecast(shape)}))
        return
    ratios: dict[str, float] = {}
    print(f"{'':16}{'forecast MiB':>14}{'measured MiB':>14}{'ratio':>8}")
    for name in SHAPES:
        done = subprocess.run([sys.executable, __file__, "--only", name], check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        ratios[name] = round(row["forecast"] / row["measured"], 3)
        print(f"{name:16}{row['forecast'] / 2**20:14.0f}{row['measured'] / 2**20:14.0f}{ratios[name]:8.2f}", flush=True)
    worst = max(ratios.values(), key=lambda ratio: abs(ratio - 1.0))
    unit = "forecast / measured peak"
    print_line("plan_memory", ratio=worst, ours=worst, other=1.0, unit=unit, runs=1, ratios=ratios)


if __name__ == "__main__":
    main()
