"""AdamW, gradient clipping and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradus.core import ConfigError

__all__ = ["SCHEDULES", "OptimiserConfig", "clip_gradients", "learning_rate", "make_optimiser", "trainable"]


class OptimiserConfig(BaseModel):
    """AdamW and its schedule.

    ``learning_rate`` is the peak. ``warmup`` is the share of all steps over which it rises linearly from 0. ``floor`` is the share
    of the peak that a decaying schedule ends at. ``grad_clip`` bounds the norm of the whole gradient; 0 leaves it alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-3, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = Field(default=0.0, ge=0, lt=1)
    floor: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    grad_clip: float = Field(default=1.0, ge=0)


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": _cosine,
}


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """The rate of optimiser step ``step`` (1 for the first) of ``steps``.

    >>> config = OptimiserConfig(learning_rate=1.0, schedule="linear", warmup=0.2)
    >>> [round(learning_rate(config, step, 10), 3) for step in (1, 2, 3, 10)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = round(config.warmup * steps)
    if step <= rising:
        return config.learning_rate * step / rising
    progress = (step - rising - 1) / max(1, steps - rising)
    share = SCHEDULES[config.schedule](min(1.0, progress))
    return config.learning_rate * (config.floor + (1.0 - config.floor) * share)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter, of those that require a gradient; with adapters these are the adapters alone."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise ConfigError("no parameter of the model requires a gradient; nothing can be trained")
    return found


def make_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: norms and biases have no reason to shrink."""
    parameters = trainable(model).values()
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Norm of the whole gradient before clipping, scalar. ``limit`` 0 measures only."""
    gradients = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return nn.utils.clip_grad_norm_(gradients, limit if limit > 0 else math.inf)
