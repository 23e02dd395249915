"""Digests of the data and the code of a run: its rows, rewards, environment and algorithm.

Settings hold names alone. The digests tell whether what a name stands for is still the same.
"""

from __future__ import annotations

import inspect
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus import environments
from gradus.core.naming import IMPORTED, file_sources, imported_files
from gradus.core.values import plain, without_none
from gradus.environments.verifiable.items import TableTasks
from gradus.rewards import BUILT_IN

if TYPE_CHECKING:  # a job brings torch, which a scripted teacher does not need
    from gradus.runs.job import Job

_LIBRARY = {"gradus", *sys.stdlib_module_names} - {"builtins"}  # where a class is that exec made


def data_sources(job: Job) -> dict[str, str]:
    """Returns the digests of the rows of a data set, by a name for each."""
    tasks = job.bare.data_set
    return {_rows_label(tasks.name): rows_digest(tasks)} if isinstance(tasks, TableTasks) else {}


def environment_sources(job: Job) -> dict[str, str]:
    """Returns the digests of the code of an environment of one's own."""
    name = job.recipe.environment
    sources: dict[str, str | None] = dict(job.bare.sources)
    if job.named:
        if not environments.is_registered(name):
            sources |= file_sources(name if name.endswith(".py") else name.rpartition(":")[0])
    elif not isinstance(job.bare.data_set, TableTasks):
        sources[f"code of {name}"] = code_digest(job.bare.make)
    return without_none(sources)


def reward_sources(job: Job) -> dict[str, str]:
    """Returns the digests of reward functions of one's own, by name."""
    sources: dict[str, str | None] = {}
    for name in (entry.function for entry in job.rewards.entries):
        function = job.rewards.functions.get(name)
        if function is not None:  # an object of this process: its file may hold another one of that name by now
            sources[f"code of {name.rpartition(':')[2]}"] = code_digest(function)
        elif name not in BUILT_IN:
            sources |= file_sources(name.rpartition(":")[0])
    return without_none(sources)


def algorithm_sources(name: str) -> dict[str, str]:
    """Returns the digests of the code of an algorithm that is not Gradus's own."""
    from gradus.training.config import algorithm_of  # it brings torch

    if name.partition(":")[0].endswith(".py"):
        return file_sources(name.rpartition(":")[0])
    algorithm = algorithm_of(name)
    modules = [str(getattr(function, "__module__", "gradus")) for function in (algorithm.loss, algorithm.advantage)]
    sources: dict[str, str] = {}
    for module in modules:
        if module.partition(".")[0] != "gradus":
            sources |= file_sources(module)
    return sources


def rows_digest(tasks: TableTasks) -> str:
    """Returns a digest of the rows as they are used."""
    splits: dict[str, list[Any]] = {}
    for split, items in tasks.splits.items():
        splits[split] = [
            [item.question, item.answer, item.worked, item.system, dict(item.columns), *item.messages] for item in items
        ]
    return sha256(json.dumps(plain([tasks.system_prompt, splits])).encode()).hexdigest()


def _rows_label(name: str) -> str:
    """``rows of e.jsonl`` for ``jsonl:data/e.jsonl?answer=label``, and ``rows`` for rows in memory."""
    place = name.partition(":")[2].partition("?")[0]
    if place:
        return f"rows of {Path(place).name}"
    return "rows" if name == "rows" else f"rows of {name}"


def code_digest(function: Any) -> str | None:
    """Returns a digest of the text of a function, or of the class of a callable object; None if it has none, as at a prompt."""
    # The digest is of the text that computes, not of what wraps it.
    while hasattr(function, "func"):  # of a partial
        function = function.func
    source: Any = inspect.unwrap(function)
    if not (inspect.isroutine(source) or inspect.isclass(source)):
        source = source.__class__
    try:
        text = inspect.getsource(source)
        return sha256(text.encode(errors="backslashreplace")).hexdigest()
    except (OSError, TypeError):
        return None


def forget_changed_files() -> None:
    """Let a file that was imported by its path be imported anew if it, or a file of one's own that it imports, was changed since.

    For the beginning of a call in a process that lives long, as a notebook does. Within a call nothing changes.
    """
    for key, since in list(IMPORTED.items()):
        path = Path(getattr(sys.modules.get(key), "__file__", None) or "")
        if not path.is_file():
            continue
        files = {path, *imported_files(path, path.parent).values()}
        if any(file.stat().st_mtime > since for file in files):
            del IMPORTED[key]
            _forget_modules(files)


def _forget_modules(files: set[Path]) -> None:
    """Remove the modules of these files from the process, but for the library's own."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # A script that is run has no name to be imported by again.
        stays = name == "__main__" or name.partition(".")[0] in _LIBRARY
        if file and Path(file) in files and not stays:
            del sys.modules[name]
