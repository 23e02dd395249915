"""Several processes as one trainer, started by ``accelerate launch``.

Every process holds the whole model. It plays its share of a step's groups; the played groups are then gathered, so that
credit, figures and decisions are the same everywhere. It trains on its share of the sequences with the denominators of the whole
step, and the gradients are added up once, before clipping. So the sum is the gradient of one process, whatever their number, and
processes need not cut their share into equally many microbatches. Process 0 alone writes files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradus.core import ConfigError

__all__ = ["World", "any_of", "barrier", "gather", "largest", "share", "sum_gradients", "total", "world"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """Which process this is, of how many, and the accelerator that is its own on this machine (None on a CPU)."""

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    @property
    def main(self) -> bool:
        """Whether this process writes files and draws the screen."""
        return self.rank == 0


@lru_cache(maxsize=1)
def world() -> World:
    """This process's place; joins the others at the first call. Alone, nothing is imported or started.

    Raises ConfigError under a launcher configuration that shards the model, which this trainer does not do.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return World()
    from accelerate import DistributedType, PartialState

    for flag, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(flag, "false").lower() == "true":
            raise ConfigError(
                f"{name} shards the model, and the sampler here needs all of it in every process; launch without it "
                "(data parallel), or sample on a server and see docs/scaling.md"
            )
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true" or not torch.cuda.is_available()
    state = PartialState(cpu=use_cpu)
    if state.distributed_type == DistributedType.NO:
        return World()
    device = None if use_cpu else state.device
    return World(rank=state.process_index, size=state.num_processes, device=device)


def share(count: int) -> range:
    """Which of ``count`` things, dealt in contiguous shares of almost equal size, belong to this process."""
    here = world()
    return range(count * here.rank // here.size, count * (here.rank + 1) // here.size)


def gather(items: Sequence[T]) -> list[T]:
    """The items of all processes, process after process; the same list everywhere."""
    if world().size == 1:
        return list(items)
    found: list[Any] = [None] * world().size
    torch.distributed.all_gather_object(found, list(items))
    return [item for part in found for item in part]


def total(values: Iterable[float]) -> list[float]:
    """Each value added up over the processes."""
    mine = list(values)
    rows = gather([mine])
    return [sum(column) for column in zip(*rows, strict=True)]


def largest(value: float) -> float:
    """The largest of the processes' values."""
    return max(gather([value]))


def any_of(flag: bool) -> bool:
    """Whether it is true anywhere."""
    return any(gather([flag]))


def barrier() -> None:
    """Wait until all processes are here."""
    if world().size > 1:
        torch.distributed.barrier()


def sum_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, in one message; a process that trained nothing adds zeros."""
    if world().size == 1:
        return
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [_gradient(parameter) for parameter in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    torch.distributed.all_reduce(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.grad = flat[start:end].view_as(parameter)
        start = end


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
