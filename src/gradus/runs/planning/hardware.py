"""The machine a plan is made for: measured here, or named by a preset."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """``memory`` bytes that a run may use; ``peak`` FLOP/s of a large matrix product; ``share`` of it that training reaches;
    ``bandwidth`` bytes/s; ``overhead`` seconds a layer costs in calls; ``price`` US dollars an hour."""

    name: str
    kind: str
    memory: float
    peak: float
    share: float
    bandwidth: float
    overhead: float
    price: float | None = None

    @property
    def reached(self) -> float:
        """FLOP/s that training and prefilling reach."""
        return self.peak * self.share


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A machine and the settings of GrpoConfig that suit it. ``hardware`` None: this machine."""

    settings: Mapping[str, Any]
    hardware: Hardware | None = None


# Peaks and bandwidths are the makers' data sheets (dense bf16); shares, overheads and prices are assumptions of the usual size.
_L4 = Hardware(
    name="an L4 of 24 GB",
    kind="cuda",
    memory=22 * GIB,
    peak=121e12,
    share=0.35,
    bandwidth=300e9,
    overhead=4e-5,
    price=0.8,
)
_H100 = Hardware(
    name="an H100 of 80 GB",
    kind="cuda",
    memory=76 * GIB,
    peak=989e12,
    share=0.35,
    bandwidth=3.35e12,
    overhead=4e-5,
    price=3.0,
)

PRESETS: dict[str, Preset] = {
    "cpu": Preset(  # small models, float32, no adapters
        settings={"groups": 16, "group_size": 8, "token_budget": 4096, "lr": 1e-3},
    ),
    "small-gpu": Preset(  # up to 3 B parameters by LoRA
        settings={
            "groups": 8,
            "group_size": 8,
            "token_budget": 2048,
            "lr": 1e-5,
            "dtype": "bfloat16",
            "lora": {"rank": 16, "alpha": 32},
            "gradient_checkpointing": True,
            "sampling": {"max_new_tokens": 512},
        },
        hardware=_L4,
    ),
    "large-gpu": Preset(  # up to 7 B parameters by LoRA, in larger groups
        settings={
            "groups": 32,
            "group_size": 16,
            "token_budget": 8192,
            "lr": 1e-5,
            "dtype": "bfloat16",
            "lora": {"rank": 32, "alpha": 64},
            "gradient_checkpointing": True,
            "sampling": {"max_new_tokens": 1024},
        },
        hardware=_H100,
    ),
}


@lru_cache(maxsize=1)
def this_machine() -> Hardware:
    """This machine, measured in about a second: free memory, matrix products, copying, and what a small operation costs."""
    import torch

    from gradus.training.engine.passes import matmul_peak

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return Hardware(
            name=torch.cuda.get_device_name(),
            kind="cuda",
            memory=float(free),
            peak=matmul_peak("cuda", torch.bfloat16),
            share=0.35,
            bandwidth=_copying("cuda"),
            overhead=_calls("cuda"),
        )
    return Hardware(
        name="this processor",
        kind="cpu",
        memory=_available_memory(),
        peak=matmul_peak("cpu", torch.float32),
        share=0.6,  # measured as matmul_peak_share: 0.55 to 0.76 for Rhythm's nano model, 0.58 to 0.94 in benchmarks beside TRL
        bandwidth=_copying("cpu"),
        overhead=_calls("cpu"),
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _available_memory() -> float:
    """Bytes that new programs may use; a control group's limit if it is lower."""
    free = float(psutil.virtual_memory().available)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, float(text) - used)
    return free


def _copying(device: str) -> float:
    """Bytes read and written per second by a large copy."""
    import torch

    source = torch.ones(2**24 if device == "cpu" else 2**27, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2.0 * source.numel() * 4 / best


def _calls(device: str) -> float:
    """Seconds of a decoder layer that has next to nothing to compute: about thirty small operations."""
    import torch

    small = torch.ones(8, 8, device=device)
    started = time.perf_counter()
    for _ in range(300):
        small = (small @ small).mul_(0.125)
    if device != "cpu":
        torch.cuda.synchronize()
    return 30 * (time.perf_counter() - started) / 600
