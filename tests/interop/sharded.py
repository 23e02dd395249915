"""Five updates of a nano model sharded by torch's FSDP on CPUs (gloo), beside the same updates in one piece.

``torchrun --nproc-per-node 2 sharded.py MODEL VERSION``, VERSION 1 (FullyShardedDataParallel) or 2 (fully_shard). Process 0 prints
one JSON line: the largest difference of a weight, and the share of the parameters that a process keeps between passes.

This is torch's part only: transformers' own forward pass, and as many passes in each process. What this trainer does besides
(sampling with the weights it trains, shares cut into different numbers of passes) is not in it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from gradus.policies import load_model

STEPS = 5


def sharded(model: Any, version: str) -> Any:
    if version == "1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def kept(model: Any) -> int:
    """Numbers that this process holds of the parameters."""
    return sum(getattr(one, "to_local", lambda one=one: one)().numel() for one in model.parameters())


def whole(model: Any, version: str) -> dict[str, torch.Tensor]:
    """All weights, gathered."""
    if version == "2":
        return {name: value.full_tensor() for name, value in model.state_dict().items()}
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model):
        named = model.named_parameters()
        return {name.replace("_fsdp_wrapped_module.", ""): value.detach().clone() for name, value in named}


def main() -> None:
    folder, version = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    alone: Any = load_model(folder).model
    together: Any = sharded(load_model(folder).model, version)
    ids = torch.randint(0, 20, (2 * size, 16), generator=torch.Generator().manual_seed(0))
    optimisers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (alone, together)]
    for _ in range(STEPS):
        for model, optimiser, rows in zip((alone, together), optimisers, (ids, ids[2 * rank :][:2]), strict=True):
            model(input_ids=rows, labels=rows).loss.backward()  # the mean of equal shares' means is the mean
            optimiser.step()
            optimiser.zero_grad()
    share = kept(together) / kept(alone)
    found = whole(together, version)
    with torch.no_grad():
        gap = max(float((found[name] - value).abs().max()) for name, value in alone.named_parameters())
    if rank == 0:
        print(json.dumps({"version": version, "gap": gap, "share": share}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
