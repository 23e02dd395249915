"""Sizes a training pass by the tokens that fit into memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

from gradus.core.errors import first_line
from gradus.training.distributed.processes import world
from gradus.training.engine.loss_step import TrainingError
from gradus.training.trainer_config import TrainerConfig

T = TypeVar("T")


class PassBudget:
    """Tokens of a pass: ``token_budget``, halved whenever memory runs out, unless there are other processes.

    No result depends on how a step is cut into passes, so a run goes on as if it had begun with the smaller budget.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.tokens = config.token_budget
        self._halves = world().size == 1  # other processes would not know

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
                    f"out of memory in a pass of {max(self.tokens, longest)} tokens ({reason}); lower token_budget, set "
                    "gradient_checkpointing = true, set lora (adapters need few gradients and moments), or shorten the sequences (the "
                    f"longest has {longest} tokens)"
                )
            self.tokens = max(self.tokens // 2, longest)
            print(f"out of memory: going on with token_budget = {self.tokens}", file=sys.stderr)
