"""The named algorithms as their papers write them: what the laws compute advantages and losses by. Nothing is shared with the registry."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Center = Literal["mean", "leave_one_out", "tokens", "ratio", "components"]
Average = Literal["tokens", "sequences", "budget"]


class Formula(NamedTuple):
    """One algorithm.

    ``center``: what an episode's reward is compared with; by turn they all have the leave-one-out mean. ``average``: what the loss divides
    the tokens of an episode by. ``clip``: low and high. ``ratio``: how the ratio weighs a token: clipped, clipped as the mean of a
    sequence, bounded without a gradient, or plain. ``scale``: what advantages are divided by, None for an algorithm that knows it itself.
    ``rounds``: further ones that replace groups without a difference.
    """

    center: Center
    average: Average
    clip: tuple[float, float]
    ratio: Literal["clipped", "sequence", "bounded", "plain"] = "clipped"
    scale: str | None = "group"
    rounds: int = 0


FORMULAS = {
    "gradus": Formula("mean", "tokens", (0.2, 0.28), scale="batch"),
    "grpo": Formula("mean", "sequences", (0.2, 0.2)),
    "dr_grpo": Formula("mean", "budget", (0.2, 0.2), scale="none"),
    "dapo": Formula("mean", "tokens", (0.2, 0.28), rounds=10),
    "gspo": Formula("mean", "sequences", (3e-4, 4e-4), "sequence"),
    "cispo": Formula("mean", "tokens", (1.0, 4.0), "bounded"),
    "rloo": Formula("leave_one_out", "tokens", (math.inf, math.inf), "plain", scale="none"),
    "reinforce++": Formula("tokens", "tokens", (0.2, 0.2), scale=None),
    "gdpo": Formula("components", "tokens", (0.2, 0.28)),
    "maxrl": Formula("ratio", "tokens", (0.2, 0.28), scale=None),
}


def remaining(schedule: str | None, passed: float) -> float:
    """The share of a rate or coefficient that is left once the share ``passed`` of the steps is over."""
    shares = {"linear": 1.0 - passed, "cosine": (1.0 + math.cos(math.pi * passed)) / 2}
    return shares.get(schedule or "", 1.0)


def weigh(ratio: Tensor, logprobs: Tensor, signs: Tensor, low: float, high: float, kind: str) -> tuple[Tensor, Tensor]:
    """What a token is worth, with gradient, at these ratios and signs of the advantages, and whether the clip has a part in it, (A,) both."""
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    if kind in ("bounded", "plain"):  # these two weigh the log-prob itself
        return bounded.detach() * logprobs, bounded != ratio
    clipped = ((signs > 0) & (ratio > 1.0 + high)) | ((signs < 0) & (ratio < 1.0 - low))
    return torch.where(clipped, bounded.detach(), ratio), clipped
