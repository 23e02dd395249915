"""Rolling out the policies of a run's evaluation in processes of one thread each (``eval.workers``).

The matrices of a nano model are so small that a second thread has little to do. The episodes are the same: what is drawn is keyed by
what it is drawn for. On some CPUs one thread rounds otherwise than two, so that a token at the edge of two may become the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gradus import environments
from gradus.algorithms import is_registered_here
from gradus.core import Episode, Policy, Task
from gradus.evidence.evaluation.evaluate import chosen_graders, condition_tasks, roll_out_condition
from gradus.rewards import tell_steps_taken
from gradus.runs.planning.hardware import usable_cores
from gradus.runs.progress import progress_bar
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import RunContext, run_policies
from gradus.runs.stages.state import CHECKPOINTS
from gradus.sandbox.processes import process_pool

_WORTH_PROCESSES = 1000  # episodes below which processes take longer to start than they save

Rollouts = dict[str, dict[str, list[Episode]]]


def workers_worth(run: RunContext, names: Sequence[str]) -> int:
    """Returns how many of ``eval.workers`` are worth starting for the policies ``names``: at most one for each core.

    It is 1 if other processes would not find them, for pretrained models, and for few episodes."""
    import torch

    recipe, spec = run.recipe, run.spec
    tasks = condition_tasks(spec, list(recipe.eval.conditions) or list(spec.conditions), recipe.eval.episodes)
    episodes = len(names) * recipe.eval.samples * sum(map(len, tasks.values()))
    small = recipe.model.path is None and all(_is_own(run, name) for name in names)
    whole = known_elsewhere(recipe) and spec.max_sessions is None
    if not (small and whole) or episodes < _WORTH_PROCESSES or torch.cuda.is_available():
        return 1
    return min(recipe.eval.workers, usable_cores())


def known_elsewhere(recipe: Recipe) -> bool:
    """True if another process finds the environment, the rewards and the algorithm by their names."""
    head = recipe.environment.partition(":")[0]
    local = head in environments.names() and not environments.is_registered_by_name(recipe.environment)
    given = any(each.function.startswith("python:") for each in recipe.rewards)
    return not (local or given or is_registered_here(recipe.grpo.algorithm))


def _is_own(run: RunContext, name: str) -> bool:
    return name in CHECKPOINTS or name.partition(":")[0] in run.spec.policies


def roll_out_beside(run: RunContext, names: Sequence[str], workers: int) -> Rollouts:
    """Condition -> policy -> episodes, graded by the run's grader. Raises GradusError if a process ends before its work does."""
    section, spec = run.recipe.eval, run.spec
    tasks = condition_tasks(spec, list(section.conditions) or list(spec.conditions), section.episodes)
    units = [(name, condition) for name in _longest_first(names) for condition in tasks]
    recipe = run.recipe.model_dump_json(exclude_unset=True)
    rollouts: Rollouts = {condition: {} for condition in tasks}
    total = section.samples * len(names) * sum(map(len, tasks.values()))
    done = 0
    with (
        process_pool(workers, begin=_one_thread, alone="with --set eval.workers=1") as pool,
        progress_bar("evaluate", total, "episodes") as advance,
    ):
        futures = {unit: pool.submit(_unit, recipe, str(run.folder), *unit, tasks[unit[1]]) for unit in units}
        for (name, condition), future in futures.items():
            rollouts[condition][name] = future.result()
            done += len(rollouts[condition][name])
            advance(done, total)
    return rollouts


def _longest_first(names: Sequence[str]) -> list[str]:
    """Models before scripts, so that no process is left with a model at the end."""
    return sorted(names, key=lambda name: name not in CHECKPOINTS)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _unit(recipe: str, folder: str, name: str, condition: str, tasks: Sequence[Task]) -> list[Episode]:
    """One policy under one condition, in a process of its own."""
    run, policies = _opened(recipe, folder)
    section = run.recipe.eval
    if name not in policies:
        policies.clear()  # one model at a time
        policies.update(run_policies(run, [name]))
    grader = chosen_graders(run.spec, [run.grader.name])[0]
    tell_steps_taken(grader, run.recipe.grpo.max_steps)
    seed = run.recipe.seed if section.seed is None else section.seed
    return roll_out_condition(
        run.spec, name, policies[name], condition, tasks, samples=section.samples, seed=seed, grader=grader
    )


@cache
def _opened(recipe: str, folder: str) -> tuple[RunContext, dict[str, Policy]]:
    """The run, and the policy that was rolled out last."""
    from rich.console import Console

    return RunContext(Recipe.model_validate_json(recipe), Path(folder), redo=False, console=Console(quiet=True)), {}
