"""Which tasks compared runs share: by their seeds, or by what they ask if a seed stands for several tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gradus.core import ConfigError, Episode
from gradus.core.documents import Results, TaskCounts
from gradus.core.printing import go_around
from gradus.evidence.evaluation.summary import moved_tasks

OfRuns = Mapping[str, Mapping[int, Sequence[Episode]]]  # run -> training seed -> episodes


def on_shared_conditions(files: OfRuns, conditions: Iterable[str]) -> dict[str, dict[str, dict[int, list[Episode]]]]:
    """Condition -> run -> training seed -> episodes, for the conditions that all runs share."""
    rollouts: dict[str, dict[str, dict[int, list[Episode]]]] = {}
    for condition in conditions:
        of_runs = {
            name: {
                seed: [each for each in episodes if each.task.condition == condition]
                for seed, episodes in of_seeds.items()
            }
            for name, of_seeds in files.items()
        }
        if all(episodes for of_seeds in of_runs.values() for episodes in of_seeds.values()):
            rollouts[condition] = of_runs
    rollouts = {name: of_runs for name, of_runs in rollouts.items() if _shares_tasks(name, of_runs)}
    if not rollouts:
        raise ConfigError(
            "the runs share no condition, or no task of one; evaluate them on the same conditions and data"
        )
    return rollouts


def _shares_tasks(condition: str, of_runs: OfRuns) -> bool:
    """Whether there is a task to compare on. Says so if a seed has not the same task everywhere, as after a change of a data file."""
    shared = set.intersection(*_tasks(of_runs).values())
    if moved := moved_tasks(_contents(of_runs)):
        go_around(
            f"the runs have other tasks under {moved} of the seeds of {condition}, because their data differ",
            f"{len(shared)} tasks are paired by what they ask",
        )
    return bool(shared)


def tell_other_texts(rollouts: Mapping[str, OfRuns]) -> None:
    """Say so if episodes of one seed begin with other texts: the environment may not say what its tasks ask."""
    for condition, of_runs in rollouts.items():
        begun = _by_seed(of_runs, lambda each: each.turns[0].observation if each.turns else "")
        if not moved_tasks(_contents(of_runs)) and (other := _differing(begun)):
            go_around(
                f"the runs begin with other texts under {other} of the seeds of {condition}: the environment or its data differ",
                "tasks are paired by their seeds",
            )


def with_tasks(document: Results, rollouts: Mapping[str, OfRuns]) -> Results:
    """The document, which says of each condition in which the runs have not the same tasks how many they have."""
    counted = {condition: _unlike_tasks(of_runs) for condition, of_runs in rollouts.items()}
    if tasks := {condition: counts for condition, counts in counted.items() if counts is not None}:
        document["tasks"] = tasks
    return document


def _unlike_tasks(of_runs: OfRuns) -> TaskCounts | None:
    """How many tasks each run has and how many all have; None if all have the same ones."""
    tasks = _tasks(of_runs)
    shared = set.intersection(*tasks.values())
    counts = {name: len(each) for name, each in tasks.items()}
    same = all(count == len(shared) for count in counts.values())
    return None if same else {"shared": len(shared), "runs": counts}


def _tasks(of_runs: OfRuns) -> dict[str, set[int | str]]:
    """The tasks of each run: their seeds, or what they ask if a seed stands for several."""
    moved = moved_tasks(_contents(of_runs))
    return {
        name: {
            (each.task.id or each.task.seed) if moved else each.task.seed
            for episodes in of_seeds.values()
            for each in episodes
        }
        for name, of_seeds in of_runs.items()
    }


def _contents(of_runs: OfRuns) -> list[dict[int, str]]:
    return _by_seed(of_runs, lambda each: each.task.id)


def _by_seed(of_runs: OfRuns, say: Callable[[Episode], str]) -> list[dict[int, str]]:
    """What is said of each task's episode, if anything, for each run and training seed."""
    several = [episodes for of_seeds in of_runs.values() for episodes in of_seeds.values()]
    return [{each.task.seed: said for each in episodes if (said := say(each))} for episodes in several]


def _differing(values: Sequence[Mapping[int, str]]) -> int:
    """How many seeds have not the same value wherever they have one."""
    by_seed: dict[int, set[str]] = {}
    for each in values:
        for seed, value in each.items():
            by_seed.setdefault(seed, set()).add(value)
    return sum(len(each) > 1 for each in by_seed.values())
