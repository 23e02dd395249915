"""Several processes as one trainer, started by ``accelerate launch``.

Every process rolls out its share of a step's groups; the groups are then gathered, so that credit, figures and decisions are
the same everywhere. It trains on its share of the sequences with the denominators of the whole step. If every process holds the
whole model, the gradients are added up once, in float32, before clipping; so the sum is the gradient of one process, whatever their
number, and processes need not cut their share into equally many microbatches. If each holds a shard of it (:mod:`fsdp`), torch adds them up
pass by pass. Process 0 alone writes files.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record

T = TypeVar("T")

_REST = 1.0  # seconds
_SLOWEST = timedelta(
    hours=6
)  # that the others wait for a process: torch's ten minutes are less than some rollouts take


@frozen_record
class TrainingProcess:
    """This process: its number, the count of all, and its own accelerator on this machine (None on a CPU)."""

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    @property
    def main(self) -> bool:
        """Says whether this process writes files and draws the screen."""
        return self.rank == 0


@lru_cache(maxsize=1)
def world() -> TrainingProcess:
    """This process's place among those of a launcher, which join at the first call. Alone, nothing is imported or started.

    Raises ConfigError under a launcher's configuration that this trainer does not follow.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return TrainingProcess()
    from accelerate import DistributedType, PartialState

    _check_launch()
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true" or not torch.cuda.is_available()
    state: Any = PartialState(cpu=use_cpu, timeout=_SLOWEST)
    if state.distributed_type == DistributedType.NO:
        return TrainingProcess()
    atexit.register(_leave, state)
    device = None if use_cpu else state.device
    return TrainingProcess(rank=state.process_index, size=state.num_processes, device=device)


def _several() -> bool:
    """Says whether there are other processes to talk to."""
    return world().size > 1


def _leave(state: Any) -> None:
    """Leave the process group before Python ends.

    A thread of gloo's that lets go of a tensor while Python ends aborts the process (pytorch/pytorch#179291). Leaving the group ends
    these threads, unless something still refers to the group, as torch's caches do after FSDP; then a moment lets them rest.
    """
    state.destroy_process_group()
    time.sleep(_REST)


def launched_with(feature: str) -> bool:
    """Says if accelerate's launcher was asked for a feature, named as in its ``ACCELERATE_USE_...``: ``FSDP``."""
    return os.environ.get(f"ACCELERATE_USE_{feature}", "false").lower() == "true"


def _check_launch() -> None:
    """Refuse what would have no effect here, or a wrong one."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", ""):
        raise ConfigError(
            f"the launcher asks for mixed precision {precision}, but precision is a setting of the run: launch with "
            "--mixed_precision no and set autocast = true (or dtype) in the run"
        )
    if launched_with("DEEPSPEED"):
        raise ConfigError("DeepSpeed is not supported; launch with FSDP 2: --use_fsdp --fsdp_version 2")
    if launched_with("FSDP"):
        from accelerate.utils.fsdp_utils import disable_fsdp_ram_efficient_loading

        disable_fsdp_ram_efficient_loading()  # transformers would read the weights in process 0 only and leave the others empty


def share(count: int) -> range:
    """Returns which of ``count`` items, dealt in contiguous shares of almost equal size, belong to this process."""
    rank, size = world().rank, world().size
    return range(count * rank // size, count * (rank + 1) // size)


def gather(items: Sequence[T]) -> list[T]:
    """The items of all processes, process after process; the same list everywhere."""
    if not _several():
        return list(items)
    parts: list[Any] = [None] * world().size
    torch.distributed.all_gather_object(parts, list(items))
    return [item for part in parts for item in part]


def from_main(item: T) -> T:
    """Process 0's item, everywhere: for decisions on figures that may differ in their last bits."""
    if not _several():
        return item
    box: list[Any] = [item]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def total(values: Iterable[float]) -> list[float]:
    """Each value added up over the processes."""
    mine = list(values)
    rows = gather([mine])
    return [sum(column) for column in zip(*rows, strict=True)]


def largest(value: float) -> float:
    """The largest of the processes' values."""
    return max(gather([value]))


def any_of(flag: bool) -> bool:
    """Says whether it is true anywhere."""
    return any(gather([flag]))


def barrier() -> None:
    """Wait until all processes are here."""
    if _several():
        torch.distributed.barrier()


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Add up the gradients of all processes, in one message; a process that trained nothing adds zeros."""
    if not _several():
        return
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


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that processes hold parts of (a DTensor); all must ask. Any other tensor as it is."""
    gather_parts = getattr(tensor, "full_tensor", None)
    return tensor if gather_parts is None else cast(Tensor, gather_parts())


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor in the memory of process 0's machine; an empty one elsewhere. All must ask."""
    full = full_tensor(tensor.detach())
    return full.cpu().contiguous() if world().main else full.new_empty(0)


def gather_if_sharded(tensor: Tensor) -> Tensor:
    """The full tensor, as :func:`gather_full_tensor` has it, of one that processes hold parts of; any other as it is."""
    return gather_full_tensor(tensor) if hasattr(tensor, "full_tensor") else tensor


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Returns what this process holds of the whole ``value`` where it holds ``like`` of another of its shape; else ``value`` itself."""
    if not hasattr(like, "full_tensor") or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    sharded = cast(DTensor, like)
    full = value.to(device=sharded.device, dtype=value.dtype)
    # Every process has all of it, so none has to send it.
    return distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)
