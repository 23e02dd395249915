"""Training the seeds of a run: one after another here, or beside each other in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.text import Text

from gradus.core import ConfigError, GradusError
from gradus.core.terminal import Terminal
from gradus.evidence.reports import write_report
from gradus.runs.planning.hardware import usable_cores
from gradus.runs.recipe.record import Recipe
from gradus.runs.stages.context import RunContext
from gradus.runs.stages.runner import do_stages, store_costs
from gradus.runs.stages.stages import stages_of
from gradus.sandbox.locks import FolderLock
from gradus.sandbox.processes import collect_rarely

_LOOK = 1.0  # seconds
_REFUSED = f"{ConfigError.__name__}: "  # how the last line of a seed begins that was refused


def free_cores() -> int:
    """Cores that nothing uses now, at least 1; 1 if there is a GPU, which seeds would share.

    It looks for a second in which this process does nothing. The load of the last minute would count what it has just done itself.
    """
    if torch.cuda.is_available():
        return 1
    cores = psutil.cpu_count() or 1
    busy = cores * psutil.cpu_percent(interval=_LOOK) / 100
    return max(1, min(usable_cores(), round(cores - busy)))


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
    ending = Event()

    def follow(folder: Path, recipe: Recipe) -> str | None:
        """What a seed printed last if it failed."""
        process = _start(recipe, folder, shared, redo=redo)
        running.append(process)
        if ending.is_set():  # it started after the others were killed
            process.kill()
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
            ending.set()
            for process in running:
                process.kill()
    failed = [f"{folder.name}: {last}" for folder, last in zip(members, ends, strict=True) if last is not None]
    if failed:
        told = "; ".join(failed)
        what = f"{len(failed)} of {len(members)} seeds failed ({told})"
        if any(last.startswith(_REFUSED) for last in filter(None, ends)):
            raise ConfigError(what)  # it says the way out; the same command is refused again
        raise GradusError(f"{what}; the same command goes on with them")


def _start(recipe: Recipe, folder: Path, shared: Path, *, redo: bool) -> subprocess.Popen[str]:
    """A process with one thread that trains one seed. Its standard input stays open as long as this process lives."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "gradus.runs.stages.seed_processes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # Ctrl-C is for the process that started it
    )
    assert process.stdin is not None
    told = {"recipe": recipe.model_dump(mode="json", exclude_unset=True), "folder": str(folder), "shared": str(shared)}
    process.stdin.write(json.dumps({**told, "redo": redo, "path": sys.path}) + "\n")
    process.stdin.flush()
    return process


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing more is written there: it ends when the parent does
    os._exit(1)


def _main() -> None:
    told: Mapping[str, Any] = json.loads(sys.stdin.readline())
    sys.path[:] = told[
        "path"
    ]  # -P keeps files of the working folder from taking the place of Python's own; here stands what the parent finds
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    collect_rarely()
    recipe = Recipe.model_validate(told["recipe"])
    try:
        _train(recipe, Path(told["folder"]), Path(told["shared"]), redo=told["redo"], console=Terminal(width=72))
    except GradusError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}")
        sys.exit(3)


if __name__ == "__main__":
    _main()
