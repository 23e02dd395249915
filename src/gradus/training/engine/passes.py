"""Sizes a training pass: the tokens that fit into memory, and the arithmetic they need."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import nn

from gradus.core.errors import first_line
from gradus.policies.local.cpu.float32_linear import product
from gradus.policies.local.llama_forward import causal_model
from gradus.training.data.microbatches import MicroBatch
from gradus.training.distributed.processes import world
from gradus.training.engine.loss_step import TrainingError
from gradus.training.trainer_config import TrainerConfig

T = TypeVar("T")


class PassBudget:
    """Tokens of a pass: ``token_budget``, halved whenever memory runs out, unless ``out_of_memory`` is ``stop``.

    No result depends on how a step is cut into passes, so a run goes on as if it had begun with the smaller budget.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.tokens = config.token_budget
        self._halves = config.out_of_memory == "auto" and world().size == 1  # other processes would not know
        self._checkpoints, self._adapters = config.gradient_checkpointing, config.lora is not None

    def spend(self, work: Callable[[int], T], longest: int) -> T:
        """``work(tokens)``, begun again with half the tokens as often as memory runs out.

        ``longest``: tokens of the longest sequence, which is never cut. Raises TrainingError if no smaller pass is left to try.
        """
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError as error:
                reason = first_line(error) or "out of memory"
            # The exception is gone, and with it the tensors of the pass.
            if torch.cuda.is_available():
                gc.collect()
                torch.cuda.empty_cache()
            if not self._halves or self.tokens <= longest:
                raise TrainingError(
                    f"out of memory in a pass of {max(self.tokens, longest)} tokens ({reason}); {self._way_out(longest)}"
                )
            self.tokens = max(self.tokens // 2, longest)
            print(f"out of memory: going on with token_budget = {self.tokens}", file=sys.stderr)

    def _way_out(self, longest: int) -> str:
        if self.tokens > longest:
            return f"set token_budget to {max(self.tokens // 2, longest)}"
        if not self._checkpoints:
            return "set gradient_checkpointing = true"
        if not self._adapters:
            return "set lora, whose adapters need few gradients and moments"
        return f"shorten the sequences (the longest has {longest} tokens): lower max_turns or sampling.max_new_tokens"


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

    Counted: real tokens only, without padding, a shared prefix once; the upper triangle of attention is not needed.
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
            6 * matrices * batch.tokens + 6 * head * len(batch.labels.target) + 12 * width * batch.pairs
            for batch in passes
        )
    )
