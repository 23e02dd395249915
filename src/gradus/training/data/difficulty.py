"""Draws training tasks by what is known of their groups, so that fewer groups have members that all got the same reward."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradus.core import ConfigError, EnvironmentSpec, Group, Task, child_seed
from gradus.core.files import read_json, write_text

if TYPE_CHECKING:
    from gradus.training.config import GrpoConfig

FILE = "difficulty.json"  # in a checkpoint
_PRIOR = 2.0  # how many members' worth of belief a task has that was never seen, with the mean of those that were
_HALF_LIFE = 20.0  # steps after which half of what is known of a task is forgotten: the policy moves on


class TaskDifficulty:
    """Thompson sampling over a finite set of tasks. What it looks for is spread within a group, from which alone GRPO learns.

    A group's signal is the variance of its rewards over the largest that the run's range of rewards allows: 4 p (1 - p) for a reward
    of 0 or 1 with success p, which is largest at one half. Each task has a Beta posterior of its signal. A draw takes the tasks whose
    sampled signal is highest. A task that was never seen, or was forgotten, has the mean of all; so no task is lost.
    """

    def __init__(self, spec: EnvironmentSpec, config: GrpoConfig, reserved: Container[str]) -> None:
        assert config.tasks is not None
        indices = range(config.first_task + config.held_out, config.first_task + config.tasks)
        tasks = (spec.identify(spec.train_task(index)) for index in indices)
        self._pool = [task for task in tasks if task.id not in reserved]
        if len(self._pool) < config.groups:
            raise ConfigError(
                f"task_order = 'difficulty' chooses {config.groups} tasks a step, and {len(self._pool)} may be trained on; give more "
                "rows, or lower grpo.groups"
            )
        self._seed = config.seed
        self._known: dict[str, tuple[float, float, int]] = {}  # task -> signal times members, members, step
        self._range: tuple[float, float] | None = None  # of all rewards so far

    @property
    def seen(self) -> Iterable[str]:
        """Ids of the tasks that were trained on."""
        return self._known

    def draw(self, step: int, attempt: int, count: int, taken: Container[str]) -> list[Task]:
        """``count`` tasks of the set for ``step``; those that are ``taken`` only if nothing else is left."""
        signal, members = self._beliefs(step)
        mean = (signal.sum() + 1) / (members.sum() + 2)
        rng = np.random.default_rng(child_seed(self._seed, "difficulty", step, attempt))
        sampled = rng.beta(signal + _PRIOR * mean, members - signal + _PRIOR * (1 - mean))
        order = [self._pool[place] for place in np.argsort(-sampled, kind="stable")]
        return sorted(order, key=lambda task: task.id in taken)[:count]

    def _beliefs(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Signal and members of each task of the pool, (tasks,) both, as far as they are remembered at ``step``."""
        known = np.array([self._known.get(task.id or "", (0.0, 0.0, step)) for task in self._pool])
        left = 0.5 ** ((step - known[:, 2]) / _HALF_LIFE)
        return known[:, 0] * left, known[:, 1] * left

    def observe(self, step: int, groups: Iterable[Group]) -> None:
        """Learn from the groups of ``step``."""
        graded = [(group, [value for value in group.values() if value is not None]) for group in groups]
        values = [value for _, rewards in graded for value in rewards]
        if values:
            low, high = self._range or (min(values), max(values))
            self._range = (min(low, *values), max(high, *values))
        for group, rewards in graded:
            if len(rewards) < 2 or self._range is None:
                continue
            most = ((self._range[1] - self._range[0]) / 2) ** 2
            signal = min(1.0, float(np.var(rewards)) / most) if most else 0.0
            before, members, last = self._known.get(group.task.id or "", (0.0, 0.0, step))
            left = 0.5 ** ((step - last) / _HALF_LIFE)
            count = len(rewards)
            self._known[group.task.id or ""] = (before * left + signal * count, members * left + count, step)

    def save(self, folder: Path) -> None:
        """Write what is known to the folder of a checkpoint."""
        write_text(folder / FILE, json.dumps({"range": self._range, "tasks": self._known}) + "\n")

    def load(self, folder: Path) -> None:
        """Know again what :meth:`save` wrote."""
        stored = read_json(folder / FILE)
        self._range = None if stored["range"] is None else (stored["range"][0], stored["range"][1])
        self._known = {name: (signal, members, step) for name, (signal, members, step) in stored["tasks"].items()}
