"""Training the seeds of a run: one after another here, or beside each other in processes of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from gradus import environments
from gradus.algorithms import is_registered_here
from gradus.core import GradusError
from gradus.core.terminal import Terminal
from gradus.evidence.reports import write_report
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.runner import do_stages, store_costs
from gradus.runs.stages.stages import stages_of
from gradus.sandbox.locks import FolderLock
from gradus.sandbox.processes import start_child


def seeds_at_once() -> int:
    """Returns the number of seeds that are trained beside each other: one for each core that this process may use; 1 with a GPU, which seeds would share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS has none
    return 1 if torch.cuda.is_available() else cores


def known_elsewhere(recipe: Recipe) -> bool:
    """True if another process finds the environment, the rewards and the algorithm by their names."""
    head = recipe.environment.partition(":")[0]
    local = head in environments.names() and not environments.is_registered_by_name(recipe.environment)
    given = any(each.function.startswith("python:") for each in recipe.rewards)
    return not (local or given or is_registered_here(recipe.grpo.algorithm))


def train_here(members: Mapping[Path, Recipe], shared: Path, *, redo: bool, console: Console) -> None:
    """Train one seed after another in this process, with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for folder, recipe in members.items():
            console.rule(Text(folder.name, style="bold"))
            _train(recipe, folder, shared, redo=redo, console=console)
    finally:
        torch.set_num_threads(before)


def _train(recipe: Recipe, folder: Path, shared: Path, *, redo: bool, console: Console) -> None:
    lock = FolderLock(folder)
    try:
        run = RunContext(recipe, folder, redo=redo, console=console, stored=shared)
        do_stages(run, stages_of(recipe))
        store_costs(run)
        write_report(folder)
    finally:
        lock.release()


def train_beside(members: Mapping[Path, Recipe], shared: Path, parallel: int, *, redo: bool, console: Console) -> None:
    """Train up to ``parallel`` seeds at a time, each in a process that ends with this one. What they print is passed on.

    A seed that fails leaves the others alone; the error comes when they are done.
    """
    running: list[subprocess.Popen[str]] = []

    def follow(folder: Path, recipe: Recipe) -> str | None:
        """Returns the last line that a seed printed if it failed."""
        process = _start(recipe, folder, shared, redo=redo)
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
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for process in running:
                process.kill()
    failed = [f"{folder.name}: {last}" for folder, last in zip(members, ends, strict=True) if last is not None]
    if failed:
        told = "; ".join(failed)
        raise GradusError(f"{len(failed)} of {len(members)} seeds failed ({told}); the same command goes on with them")


def _start(recipe: Recipe, folder: Path, shared: Path, *, redo: bool) -> subprocess.Popen[str]:
    """Start a process with one thread that trains one seed."""
    told = {"recipe": recipe.model_dump(mode="json", exclude_unset=True), "folder": str(folder), "shared": str(shared)}
    return start_child(f"{__name__}:train_seed", {**told, "redo": redo}, threads=1)


def train_seed(told: Mapping[str, Any]) -> None:
    """Train the seed that this process was started for."""
    torch.set_num_threads(1)
    recipe = Recipe.model_validate(told["recipe"])
    _train(recipe, Path(told["folder"]), Path(told["shared"]), redo=told["redo"], console=Terminal(width=72))
