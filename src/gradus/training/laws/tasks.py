"""The tasks of a run, again by the order's own words: each in its turn, every row once an epoch, none that judges, and the ones that judge."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, count, islice

import numpy as np

from gradus.core import EnvironmentSpec, Task, child_seed
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Groups
from gradus.training.data.tasks import NO_IDS, training_tasks
from gradus.training.laws.grading import row_of
from gradus.training.laws.runner import NotMeasured, Pair, Pairs, holds, in_order
from gradus.training.lesson_config import DistillConfig

_ROWS = 10_000  # of a set whose order is looked at as a whole


def order_again(spec: EnvironmentSpec, config: GrpoConfig | DistillConfig) -> Iterator[Task]:
    """The tasks of a run one after another, those that judge too: each epoch in the order that the seed deals."""
    is_grpo = isinstance(config, GrpoConfig)
    first = config.first_task + (config.held_out if is_grpo else 0)
    # Of each epoch its number, the index of its first task, and how many it has.
    epochs: Iterator[tuple[int, int, int]]
    if is_grpo and config.tasks is not None:
        size = config.tasks - config.held_out
        epochs = ((epoch, first, size) for epoch in count())
    elif spec.data_set is not None:
        rows: int = spec.data_set.size("train")
        begun, skipped = divmod(first, rows)
        whole = ((epoch, epoch * rows, rows) for epoch in count(begun + 1))
        epochs = chain([(begun, first, rows - skipped)], whole)
    else:
        yield from (spec.identify(spec.train_task(index)) for index in count(first))
        return
    for epoch, start, size in epochs:
        for place in np.random.default_rng(child_seed(config.seed, "tasks", epoch)).permutation(size).tolist():
            yield spec.identify(spec.train_task(start + place))


def judges_again(spec: EnvironmentSpec, config: GrpoConfig, judging: Sequence[Task], taught: frozenset[str]) -> Pairs:
    """What validates are the first tasks that no condition asks and the model was not taught, at most half of a finite set."""
    others, wanted = _condition_ids(spec), config.held_out
    indexes = count(config.first_task)
    if spec.data_set is not None:
        indexes = islice(indexes, 2 * spec.data_set.size("train"))
    elif spec.content is not None:
        raise NotMeasured("rows, or tasks without end")
    different: dict[str, Task] = {}
    for index in indexes:
        if len(different) >= 2 * wanted + len(taught):
            break
        task = spec.identify(spec.train_task(index))
        if task.id not in others:
            different.setdefault(task.id, task)
    if spec.content is not None:
        wanted = min(wanted, len(different) // 2)
    expected = [task for task in different.values() if task.id not in taught][:wanted]
    place = "tasks of the validation (validation_tasks) that are the first ones, held out and never taught"
    yield in_order([task.id for task in judging], [task.id for task in expected], place)


def _condition_ids(spec: EnvironmentSpec) -> set[str]:
    # Endless environments keep the seeds of their conditions apart.
    names = spec.conditions if spec.content is not None else ()
    return {spec.identify(task).id for name in names for task in spec.tasks(name)}


def tasks_again(
    spec: EnvironmentSpec, config: GrpoConfig, judging: Sequence[Task], before: int, groups: Groups, trained: int
) -> Pairs:
    """The tasks of a step are those that follow the ``before`` that the run had, by the metrics; none is of ``judging`` or a condition.

    ``trained``: groups that the step trains on.
    """
    judges = {task.id for task in judging} | _condition_ids(spec)
    walked = islice(usable_again(spec, config, judges), before, before + len(groups))
    expected = sorted((task.seed, task.id) for task in walked)
    actual = sorted((group.task.seed, group.task.id) for group in groups)
    place = f"the tasks of the step that are numbers {before} and up in the run's order of tasks (rows), by its seed"
    yield in_order(actual, expected, place)
    yield Pair(trained, config.groups, "the groups that the step trains on")
    for group in groups:
        yield holds(group.task.id in judges, f"{group.task.seed}: validation or a condition asks the task too", False)


def usable_again(spec: EnvironmentSpec, config: GrpoConfig | DistillConfig, judges: Container[str]) -> Iterator[Task]:
    """The tasks of a run one after another, without those that judge."""
    return (task for task in order_again(spec, config) if task.id not in judges)


def trained_again(spec: EnvironmentSpec, config: GrpoConfig, judging: Iterable[str], number: int) -> set[str]:
    """The ids of the first ``number`` tasks of a run."""
    judges = {*judging, *_condition_ids(spec)}
    return {task.id for task in islice(usable_again(spec, config, judges), number)}


def same_tasks(tasks: Sequence[Task], groups: Groups) -> Pairs:
    """A validation asks its tasks, one after another."""
    yield in_order([group.task for group in groups], tasks, "tasks that a validation asks in their order")


def epochs_again(spec: EnvironmentSpec, config: GrpoConfig) -> Pairs:
    """Two epochs of a run of another seed are those of its order, and the first has every row once."""
    config = config.model_copy(update={"seed": config.seed + 1})
    first = config.first_task + config.held_out
    rows: int | None = None if spec.data_set is None else spec.data_set.size("train")
    number = rows if config.tasks is None else config.tasks - config.held_out
    if number is None or number > _ROWS:
        raise NotMeasured(f"at most {_ROWS} different tasks")
    walked, _ = training_tasks(spec, config, 0, 2 * number, NO_IDS)
    again = list(islice(order_again(spec, config), 2 * number))
    yield in_order(walked, again, "tasks of two epochs that are those of the run's order (rows), dealt by its seed")
    if rows is not None and config.tasks is None:
        begun = rows - first % rows
        # A row of the data set is told from all others, also from one that asks the same.
        different = {id(row_of(spec, task)) for task in walked[:begun]}
        yield Pair(len(different), begun, "different rows in an epoch")
