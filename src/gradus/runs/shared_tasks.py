"""Finds the tasks that compared runs share: by their seeds, or by what they ask if a seed stands for several tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradus.core import ConfigError, Episode
from gradus.core.documents import Results, TaskCounts
from gradus.core.printing import go_around
from gradus.evidence.evaluation.summary import moved_tasks

OfRuns = Mapping[str, Mapping[int, Sequence[Episode]]]  # run -> training seed -> episodes


def on_shared_conditions(files: OfRuns, conditions: Iterable[str]) -> dict[str, dict[str, dict[int, list[Episode]]]]:
    """Condition -> run -> training seed -> episodes, for the conditions in which all runs share a task. Raises ConfigError if none is left."""
    rollouts: dict[str, dict[str, dict[int, list[Episode]]]] = {}
    for condition in conditions:
        of_runs = {
            name: {seed: [each for each in one if each.task.condition == condition] for seed, one in of_seeds.items()}
            for name, of_seeds in files.items()
        }
        shared = set.intersection(*_tasks(of_runs).values())
        if not shared or not all(episodes for of_seeds in of_runs.values() for episodes in of_seeds.values()):
            continue
        rollouts[condition] = of_runs
        if moved := _moved(of_runs):
            go_around(
                f"the runs have other tasks under {moved} of the seeds of {condition}, because their data differ",
                f"{len(shared)} tasks are paired by what they ask",
            )
    if not rollouts:
        raise ConfigError(
            "the runs share no condition, or no task of one; evaluate them on the same conditions and data"
        )
    return rollouts


def with_tasks(document: Results, rollouts: Mapping[str, OfRuns]) -> Results:
    """The document; for each condition in which runs have other tasks it says how many each has, and how many all have."""
    tasks: dict[str, TaskCounts] = {}
    for condition, of_runs in rollouts.items():
        of_run = _tasks(of_runs)
        shared = len(set.intersection(*of_run.values()))
        counts = {name: len(each) for name, each in of_run.items()}
        if any(count != shared for count in counts.values()):
            tasks[condition] = {"shared": shared, "runs": counts}
    if tasks:
        document["tasks"] = tasks
    return document


def _tasks(of_runs: OfRuns) -> dict[str, set[int | str]]:
    """The tasks of each run: their seeds, or what they ask if a seed stands for several."""
    by_id = _moved(of_runs) > 0
    return {
        name: {each.task.id if by_id and each.task.id else each.task.seed for one in of_seeds.values() for each in one}
        for name, of_seeds in of_runs.items()
    }


def _moved(of_runs: OfRuns) -> int:
    several = [episodes for of_seeds in of_runs.values() for episodes in of_seeds.values()]
    return moved_tasks([{each.task.seed: each.task.id for each in episodes if each.task.id} for episodes in several])
