"""Splits tasks into those that train and those that validate, by their content and not by their index."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gradus.core import ConfigError, EnvironmentSpec, Task, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json

if TYPE_CHECKING:  # a teacher's processes need no torch
    from gradus.training.config import GrpoConfig
    from gradus.training.lesson_config import DistillConfig


@frozen_record
class HeldOut:
    """The settings that say which tasks are held out for validation; the defaults are GRPO's."""

    first_task: int = 0
    validation_every: int = 10
    validation_tasks: int = 32

    @classmethod
    def of(cls, settings: Json) -> HeldOut:
        """Those of a recipe's table ``grpo``."""
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})

    @property
    def held_out(self) -> int:
        """Number of tasks kept for validation."""
        return self.validation_tasks if self.validation_every else 0


Order = Callable[[int], int]  # place in a run's order -> index of a training task
_GIVE_UP = 20_000  # tasks in a row that may not be used
NO_IDS: frozenset[str] = frozenset()


def training_tasks(
    spec: EnvironmentSpec,
    config: GrpoConfig,
    first: int,
    number: int,
    reserved: frozenset[str],
) -> tuple[list[Task], int]:
    """``number`` tasks of the run's order from place ``first`` on, and the first place after them.

    The order is a fresh shuffle each epoch, or one after another if tasks have no end; it depends on the seed and on the place alone, so
    a resumed run goes on where it was. A task whose id is ``reserved`` is passed over.
    """
    usable = list(islice(_usable(spec, _order(spec, config), first, reserved), number))
    next_place = usable[-1][0] + 1 if usable else first
    return [task for _, task in usable], next_place


def validation_tasks(
    spec: EnvironmentSpec, config: GrpoConfig | HeldOut, taught: frozenset[str] = NO_IDS
) -> list[Task]:
    """The held-out tasks: the first training tasks that differ from each other, from those of conditions and from what was taught.

    At most half of a finite set is held out, so that a file of forty rows leaves something to train on, and none of a single task.
    """
    if not config.held_out:
        return []
    return list(islice(_different(spec, config, spec.condition_ids | taught), _at_most_half(spec, config)))


def epochs_a_step(spec: EnvironmentSpec, config: GrpoConfig) -> float | None:
    """Says which share of the rows that are trained on a step asks; None for tasks without end."""
    if config.tasks is not None:
        return config.groups / (config.tasks - config.held_out)
    if spec.data_set is None:
        return None
    rows = spec.data_set.size("train")
    return config.groups / (rows - min(config.held_out, rows // 2))


def _at_most_half(spec: EnvironmentSpec, config: GrpoConfig | HeldOut) -> int:
    """Returns how many tasks are held out: as the settings say, or half of a finite set if it has fewer than twice as many."""
    if spec.content is None:
        return config.held_out
    # No more than twice as many are looked for: half of them is then enough.
    different = 0
    with suppress(ConfigError):  # no other is left
        for _ in islice(_different(spec, config, spec.condition_ids), 2 * config.held_out):
            different += 1
    return different // 2


def _different(spec: EnvironmentSpec, config: GrpoConfig | HeldOut, excluded: frozenset[str]) -> Iterator[Task]:
    """Training tasks in order, each once."""
    ids = set(excluded)
    for _, task in _usable(spec, lambda place: config.first_task + place, 0, ids):
        ids.add(task.id)
        yield task


def reserved_ids(
    spec: EnvironmentSpec, config: GrpoConfig | HeldOut, taught: frozenset[str] = NO_IDS
) -> frozenset[str]:
    """Ids of all tasks that judge and must not be trained on or taught: validation, and conditions of a finite data set."""
    return spec.condition_ids | {task.id for task in validation_tasks(spec, config, taught)}


def distillation_tasks(
    spec: EnvironmentSpec, config: DistillConfig, number: int, reserved: frozenset[str]
) -> list[Task]:
    """The tasks of distillation, those that judge left out; rows come in an order of the run's seed."""
    usable = _usable(spec, _row_order(spec, config.seed, config.first_task), 0, reserved)
    return [task for _, task in islice(usable, number)]


def taught_indices(spec: EnvironmentSpec, number: int, reserved: frozenset[str]) -> list[int]:
    """The first ``number`` indices of training tasks that a teacher may answer."""
    usable = _usable(spec, lambda place: place, 0, reserved)
    return [place for place, _ in islice(usable, number)]


def _order(spec: EnvironmentSpec, config: GrpoConfig) -> Order:
    """The order of a run."""
    offset = config.first_task + config.held_out
    if config.tasks is None:
        return _row_order(spec, config.seed, offset)
    number = config.tasks - config.held_out
    return lambda place: offset + int(_shuffle(config.seed, place // number, number)[place % number])


def _row_order(spec: EnvironmentSpec, seed: int, offset: int) -> Order:
    """The order of the training tasks from ``offset`` on.

    Rows are shuffled within each epoch by the run's seed: an interval over seeds must hold what the order does to a run. Tasks without
    end are one after another.
    """
    if spec.data_set is None:
        return lambda place: offset + place
    rows: int = spec.data_set.size("train")

    def index_of(place: int) -> int:
        epoch, row = divmod(offset + place, rows)
        # Rows before the offset are missing in the first epoch, and the others are shuffled among themselves.
        skipped = offset % rows if epoch == offset // rows else 0
        return epoch * rows + skipped + int(_shuffle(seed, epoch, rows - skipped)[row - skipped])

    return index_of


@lru_cache(maxsize=4)
def _shuffle(seed: int, epoch: int, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order of ``number`` tasks in an epoch; kept, because a run asks for a few places at a time."""
    return np.random.default_rng(child_seed(seed, "tasks", epoch)).permutation(number)


def _usable(
    spec: EnvironmentSpec,
    index_of: Order,
    first: int,
    reserved: Container[str],
) -> Iterator[tuple[int, Task]]:
    """Places and tasks from ``first`` on, those that are reserved left out."""
    last = first
    for place in count(first):
        if place - last > _GIVE_UP:
            break
        task = spec.identify(spec.train_task(index_of(place)))
        if task.id not in reserved:
            yield place, task
            last = place
    raise ConfigError(
        f"{spec.name} has no task left to train on: all are held out for validation, were taught before or belong to a condition; "
        "lower grpo.validation_tasks, teach fewer, or give more rows"
    )
