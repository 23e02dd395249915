"""Which tasks a run trains on and which it keeps for validation."""

from __future__ import annotations

import numpy as np

from gradus.core import EnvironmentSpec, Task, child_seed
from gradus.training.config import GrpoConfig

__all__ = ["training_tasks", "validation_tasks"]


def training_tasks(spec: EnvironmentSpec, config: GrpoConfig, first: int, count: int) -> list[Task]:
    """Tasks ``first`` to ``first + count`` of the run's order: a fresh shuffle each epoch, or one after another if endless.

    The order depends on the seed and on the place alone, so a resumed run goes on where it was.
    """
    offset = config.first_task + config.held_out
    if config.tasks is None:
        return [spec.train_task(offset + place) for place in range(first, first + count)]
    number = config.tasks - config.held_out
    order = {
        epoch: np.random.default_rng(child_seed(config.seed, "tasks", epoch)).permutation(number)
        for epoch in range(first // number, (first + count - 1) // number + 1)
    }
    return [
        spec.train_task(offset + int(order[place // number][place % number])) for place in range(first, first + count)
    ]


def validation_tasks(spec: EnvironmentSpec, config: GrpoConfig) -> list[Task]:
    """The held-out training tasks; training never meets them."""
    return [spec.train_task(config.first_task + index) for index in range(config.held_out)]
