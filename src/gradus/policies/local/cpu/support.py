"""The switch of this package, and the instructions that a CPU has for bfloat16.

Most CPUs have none, and compute bfloat16 many times slower than float32.
"""

from __future__ import annotations

import os
from typing import Literal

import torch

Autocast = bool | Literal["auto"]

FAST = os.environ.get("GRADUS_PLAIN_TORCH", "0") == "0"
"""False: plain torch multiplies and attends everywhere. Both ways agree to rounding."""


def has_fast_bfloat16(device: torch.device) -> bool:
    """Says if a CPU has instructions for bfloat16 products; false for other devices, which have autocast."""
    if device.type != "cpu" or not FAST:
        return False
    # torch has no public name for either.
    bfloat16 = torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
    return bfloat16 or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]


def lacks_bfloat16(device: torch.device) -> bool:
    """Says if a device is a CPU without such instructions."""
    return device.type == "cpu" and not has_fast_bfloat16(device)


def autocasts(setting: Autocast, device: torch.device | str) -> bool:
    """Says if a pass on ``device`` is computed in bfloat16 around float32 weights; ``auto`` does so where that is faster."""
    if setting != "auto":
        return setting
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return not lacks_bfloat16(device)
