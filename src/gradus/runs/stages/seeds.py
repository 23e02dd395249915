"""`gradus run --seeds N`: a recipe trained from several seeds, and one evaluation over all of them.

The folder holds a run of its own for each seed (``seed-0``, ...), which is done, stopped and continued like any other. What
no training seed changes, the audit and the episodes of other policies, is done once, in the folder itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from gradus.core import ConfigError, Episode, GradusError
from gradus.core.documents import SCHEMA, Costs, read_document
from gradus.core.files import read_json, write_json
from gradus.core.terminal import Terminal
from gradus.core.values import Json, JsonDict
from gradus.evidence.evaluation import compare_seeds
from gradus.evidence.stage_files import remove_evaluation
from gradus.rollouts import write_episodes
from gradus.runs.job import Job, resolve
from gradus.runs.manifest import CHECKPOINTS, UNTRAINED
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import GRADED, RunContext, run_policies
from gradus.runs.stages.evaluation import (
    best_is_the_start,
    evaluate_in_run,
    graders_of,
    read_rollouts,
    write_results,
)
from gradus.runs.stages.runner import SEEDS, do_stages, finish, require_folder, run_stages
from gradus.runs.stages.stages import STAGES, stages_of
from gradus.sandbox.locks import FolderLock
from gradus.sandbox.processes import start_child
from gradus.training.run.trackers import check_trackers


def seeds_at_once() -> int:
    """Returns the number of seeds that are trained beside each other: one for each core that this process may use; 1 with a GPU, which seeds would share."""
    if torch.cuda.is_available():
        return 1
    # macOS does not say which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_here(members: Mapping[Path, Job], shared: Path, *, redo: bool, console: Console) -> None:
    """Train one seed after another in this process, with one thread."""
    before = torch.get_num_threads()
    # As in a process of its own: sums of several threads are rounded otherwise.
    torch.set_num_threads(1)
    try:
        for folder, job in members.items():
            console.rule(Text(folder.name, style="bold"))
            run_stages(job, folder, rolled_out=shared, redo=redo, console=console)
    finally:
        torch.set_num_threads(before)


def train_beside(members: Mapping[Path, Job], shared: Path, parallel: int, *, redo: bool, console: Console) -> None:
    """Train up to ``parallel`` seeds at a time, each in a process that ends with this one. What they print is passed on.

    A seed that fails leaves the others alone; the error comes when they are done.
    """
    running: list[subprocess.Popen[str]] = []

    def follow(folder: Path, job: Job) -> str | None:
        """Returns the last line that a seed printed if it failed."""
        table = job.recipe.model_dump(mode="json", exclude_unset=True)
        arguments = {"recipe": table, "folder": str(folder), "shared": str(shared), "redo": redo}
        process = start_child(f"{__name__}:train_seed", arguments, threads=1)
        running.append(process)
        last = ""
        for line in process.stdout or ():
            last = line.rstrip()
            console.print(f"{folder.name} · {last}", highlight=False, soft_wrap=True)
        return last if process.wait() else None

    with ThreadPoolExecutor(parallel) as pool:
        try:
            ends = list(pool.map(follow, members.keys(), members.values()))
        except BaseException:
            # Ctrl-C: without this the pool would begin the seeds that still wait.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for process in running:
                process.kill()
    failed = [f"{folder.name}: {last}" for folder, last in zip(members, ends, strict=True) if last is not None]
    if failed:
        count = f"{len(failed)} of {len(members)} seeds failed"
        raise GradusError(f"{count} ({'; '.join(failed)}); the same command goes on with them")


def train_seed(arguments: Json) -> None:
    """Train the seed that this process was started for."""
    job = resolve(Recipe.model_validate(arguments["recipe"]))
    members = {Path(arguments["folder"]): job}
    train_here(members, Path(arguments["shared"]), redo=arguments["redo"], console=Terminal(width=72))


# The episodes of policies that no training seed changes, in the folder of all seeds.
SHARED = "eval/shared.jsonl.gz"


def run_seeds(job: Job, folder: Path, *, seeds: int, redo: bool = False, anyway: bool = False) -> Path:
    """Train a job from ``seeds`` seeds, the recipe's and the following ones, and return the folder with all of them.

    They are trained beside each other, each in a process with one thread; the numbers do not depend on it. Environments and rewards that only
    this process has are trained here, one after another.
    """
    recipe = job.recipe
    if seeds < 2:
        raise ConfigError(f"seeds must be at least 2, got {seeds}; one seed is a plain run, chosen with --seed")
    require_folder(folder, several=True)
    check_trackers(recipe.trackers)
    # A given model is rolled out before training, as GRPO will sample from it.
    base = ("model", "grpo") if recipe.model.path else ()
    stages = {"audit": STAGES["audit"], "eval": (_do_shared, (*GRADED, "eval", *base))}
    numbers = [recipe.seed + index for index in range(seeds)]
    members = {folder / f"seed-{seed}": job.with_recipe(seed_recipe(recipe, seed)) for seed in numbers}
    with ExitStack() as held:
        held.callback(FolderLock(folder).release)
        run = RunContext(job, folder, redo=redo, anyway=anyway, stages=stages)
        if not redo:
            for member, member_job in members.items():
                _require_same_settings(member_job, member)  # before any is trained
        run.manifest.leave_out(stages)
        do_stages(run, stages)
        trained = set(numbers)
        if (folder / SEEDS).is_file():  # an earlier call may have trained others
            trained |= {*read_json(folder / SEEDS)["seeds"]}
        write_json(folder / SEEDS, {"schema": SCHEMA, "seeds": sorted(trained)})
        if redo:  # seeds may be trained again: if that is stopped, nothing should speak of their old weights
            remove_evaluation(folder)
            run.manifest.keep()  # what is gone has no checksum
        parallel = min(seeds_at_once(), seeds)
        # Another process finds environments and rewards by their names alone.
        if parallel > 1 and job.portable:
            train_beside(members, folder / SHARED, parallel, redo=redo, console=run.console)
        else:
            train_here(members, folder / SHARED, redo=redo, console=run.console)
        _evaluate(run, numbers)
        finish(run, _costs(run, list(members)))
    return folder


def _require_same_settings(job: Job, folder: Path) -> None:
    """Raises ConfigError if a folder holds a run with other settings."""
    stages = stages_of(job.recipe)
    run = RunContext(job, folder, redo=False, console=Console(quiet=True), stages=stages)
    run.manifest.leave_out(stages)
    for name, (_, sections) in stages.items():
        run.manifest.done(name, run.inputs(sections))


def seed_recipe(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one seed: audited already, one thread, and evaluated with the same draws as every other seed."""
    # All seeds meet the same tasks and draws, so that they can be paired.
    judged = recipe.seed if recipe.eval.seed is None else recipe.eval.seed
    threads = {"sft.threads": 1, "grpo.threads": 1}
    return recipe.with_settings({"seed": seed, "audit.enabled": False, "eval.seed": judged, **threads})


def _do_shared(run: RunContext, cost: JsonDict) -> None:
    """Roll out the policies that no training seed changes: all but the run's checkpoints, and a given model before training."""
    policies = run_policies(run, _shared_policies(run.job))
    episodes = evaluate_in_run(run, policies, graders=[run.grader.name], pairs=[]).flat if policies else []
    write_episodes(run.folder / SHARED, episodes, environment=run.spec.name, note="gradus run --seeds")
    cost.update(episodes=len(episodes))


def _shared_policies(job: Job) -> list[str]:
    """The policies that no training seed changes. A nano model is made from the seed, so that each seed begins with another one."""
    untrained = UNTRAINED if job.recipe.model.path is not None else []
    return [name for name in job.policies() if name in untrained or name not in CHECKPOINTS]


def _evaluate(run: RunContext, seeds: Sequence[int]) -> None:
    """One results.json over all seeds, from the episodes that each of them stored."""
    section = run.recipe.eval
    names = run.job.policies()
    shared = _shared_policies(run.job)
    rollouts: dict[str, dict[str, dict[int, list[Episode]]]] = {}
    for seed in seeds:
        stored = read_rollouts(run.folder / f"seed-{seed}" / "eval" / "episodes.jsonl.gz")
        for condition in section.conditions or stored:
            for name in names:
                of_seeds = rollouts.setdefault(condition, {}).setdefault(name, {})
                # What no training seed changes is counted once, not once a seed.
                if name not in shared or not of_seeds:
                    of_seeds[seed] = stored[condition][name]
    document = compare_seeds(
        run.spec,
        rollouts,
        seeds=seeds,
        graders=graders_of(run),
        pairs=run.job.pairs(),
        checkpoint="grpo/best",
    )
    if section.samples > 1:
        document["samples"] = section.samples
    starts = [seed for seed in seeds if best_is_the_start(run.folder / f"seed-{seed}" / "grpo")]
    write_results(run, document, starts)


def _costs(run: RunContext, members: Sequence[Path]) -> list[JsonDict]:
    """The costs of what was done once, then of each stage, added up over the seeds."""
    once = [{**row, "stage": "eval, once"} if row["stage"] == "eval" else row for row in run.ledger.costs()]
    rows: dict[str, list[Json]] = {}
    for member in members:
        for row in read_document(member / "costs.json", Costs)["stages"]:
            rows.setdefault(row["stage"], []).append(row)
    rows.pop("audit", None)  # it was switched off there
    return once + [{"stage": stage, **_added_up(of_seeds)} for stage, of_seeds in rows.items()]


def _added_up(rows: Sequence[Json]) -> dict[str, float]:
    """The sum of each figure that all rows know, rounded once."""
    sums: dict[str, float] = {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) == len(rows):
            sums[name] = round(sum(numbers), 6)
    return sums
