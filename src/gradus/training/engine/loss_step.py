"""Takes one optimizer step: backward passes over microbatches, clipping, the optimizer. SFT and GRPO alike."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from gradus.core import GradusError
from gradus.core.errors import first_line
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.loading import LoadedModel
from gradus.training.data.microbatches import MicroBatch
from gradus.training.distributed.processes import gather, sum_gradients, world
from gradus.training.engine.fsdp import idle_passes, is_sharded
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.optimizers import clip_gradients, held_parameters, trainable
from gradus.training.trainer_config import TrainerConfig

T = TypeVar("T")


class TrainingError(GradusError):
    """Training cannot go on: a figure is not finite, or sampler and trainer disagree."""


@frozen_record
class StepTaken:
    """The gradient's norm before clipping, and the seconds that clipping and the optimizer took."""

    norm: float
    seconds: float


def backward_passes(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    loss: Callable[[MicroBatch], Tensor],
) -> None:
    """Leaves the gradient of a step in the parameters: that of microbatches whose losses add up, over all processes.

    ``loss`` must divide by figures of the whole step, so that the gradient does not depend on the cut.
    """
    _check_holds(optimizer, loaded.model)
    optimizer.zero_grad(set_to_none=True)
    sharded = is_sharded(loaded.model)  # then each pass adds up its own gradients
    if sharded:
        idle_passes(loaded, len(batches))
    for batch in batches:
        loss(batch.to(loaded.device)).backward()
    if not sharded:
        sum_gradients([master_of(parameter) for parameter in trainable(loaded.model).values()])


def apply_gradients(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    config: TrainerConfig,
    lr: float,
) -> StepTaken:
    """Clips the gradient and lets the optimizer move the weights.

    Raises:
        TrainingError: the gradient is not finite, or differs between processes; the weights stay as they were.
    """
    started = time.perf_counter()
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    norm = float(clip_gradients(loaded.model, config.grad_clip))
    if not math.isfinite(norm):
        raise TrainingError(
            f"the gradient's norm is {norm}; the weights were left as they are. Lower lr, or train in float32"
        )
    _check_same(norm)
    try:
        optimizer.step()
    except torch.OutOfMemoryError as error:  # a smaller pass would not help
        raise TrainingError(f"no memory is left for the optimizer's moments ({first_line(error)}); set lora") from None
    optimizer.zero_grad(set_to_none=True)
    return StepTaken(norm=norm, seconds=time.perf_counter() - started)


def _check_holds(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    held = set(map(id, held_parameters(optimizer)))
    if any(id(master_of(parameter)) not in held for parameter in trainable(model).values()):
        raise TrainingError(
            "the optimizer holds other parameters than the model's, so the model would not move; make the optimizer after the model is "
            "loaded, moved, sharded and has its adapters"
        )


def _check_same(norm: float) -> None:
    norms = gather([norm])
    if max(norms) - min(norms) > 1e-3 * max(norms):
        raise TrainingError(
            f"the gradients of the processes differ after they were added up (norms {min(norms):.4g} to {max(norms):.4g}), so the "
            "gradient of a process is lost; the weights were left as they are"
        )


class PassBudget:
    """Tokens of a pass: ``token_budget``, halved whenever memory runs out, unless there are other processes.

    No result depends on how a step is cut into passes, so a run goes on as if it had begun with the smaller budget.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.tokens = config.token_budget
        self._halves = world().size == 1  # other processes would not know

    def spend(self, work: Callable[[int], T], longest: int) -> T:
        """Returns ``work(tokens)``, begun again with half the tokens as often as memory runs out.

        Args:
            work: takes the tokens of a pass.
            longest: tokens of the longest sequence, which is never cut.

        Raises:
            TrainingError: no smaller pass is left to try.
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
