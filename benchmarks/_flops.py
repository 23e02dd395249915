"""The arithmetic of training passes, and what a matrix product reaches on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn

from gradus.policies.local.cpu.float32_linear import product
from gradus.policies.local.llama_forward import causal_model
from gradus.training.data.microbatches import MicroBatch

_LONG = 0.01  # seconds of a product that is large enough: one of 1024 in float16 takes a CPU without such arithmetic many seconds


@lru_cache(maxsize=4)
def matmul_peak(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product here, measured once: the best of several tries."""
    if device != "cpu":
        return 2.0 * 8192**3 / _product_seconds(8192, device, dtype)
    size = 128
    while (seconds := _product_seconds(size, device, dtype)) < _LONG and size < 1024:
        size *= 2
    return 2.0 * size**3 / seconds


def _product_seconds(size: int, device: str, dtype: torch.dtype) -> float:
    left = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        result = product(left, left)  # as linear layers are computed here
        if device != "cpu":
            result[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - started)
    return best


def training_flops(model: nn.Module, passes: Sequence[MicroBatch]) -> float:
    """Floating-point operations that forward and backward passes need: matrix products of layers, head and attention.

    Counted: real tokens only (in attention padding too), a shared prefix once; the upper triangle of attention is not needed.
    """
    causal = causal_model(model)
    config = causal.config.get_text_config()
    matrices = sum(
        module.weight.numel()
        for name, module in causal.named_modules()
        if isinstance(module, nn.Linear) and "lm_head" not in name
    )
    head = config.vocab_size * config.hidden_size
    width = config.num_hidden_layers * config.hidden_size
    return float(
        sum(
            6 * matrices * batch.tokens + 6 * head * len(batch.labels.target) + 12 * width * pairs(batch)
            for batch in passes
        )
    )


def pairs(batch: MicroBatch) -> int:
    """Pairs of a token and one it attends to; padding behind a row counts as tokens of it."""
    tree = batch.tree
    rows, longest = tree.suffixes
    before = sum(length * members for length, members in zip(tree.lengths, tree.members, strict=True))
    return sum(n * (n + 1) // 2 for n in tree.lengths) + rows * longest * (longest + 1) // 2 + longest * before
