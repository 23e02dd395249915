"""``verifiers:MODULE``: tasksets of verifiers 0.4 whose tasks take one reply, scored by their own ``@vf.reward`` functions.

MODULE is a module that is installed where verifiers is, or a file ``my_taskset.py``. The pins of verifiers conflict with ours, so
it runs in a process of its own: GRADUS_VERIFIERS_PYTHON names the Python of the environment that has it.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.worker import Worker, WorkerError
from gradus.environments.verifiable.datasets import split_items
from gradus.environments.verifiable.environment import Verdict
from gradus.environments.verifiable.from_rows import one_turn_of, score_grader
from gradus.environments.verifiable.items import Item
from gradus.interop.suites.naming import SuiteNames, started

__all__ = ["load", "suite_names"]

_SETTING = "GRADUS_VERIFIERS_PYTHON"
_TASKS = 2000  # of an endless taskset


@cache
def _worker(python: str) -> Worker:
    return Worker(Path(__file__).parent / "workers" / "verifiers_worker.py", python=python, cpu_seconds=30, memory=0)


def _running() -> Worker:
    python = os.environ.get(_SETTING) or sys.executable
    return started(
        _worker(python),
        "verifiers",
        f"verifiers==0.4.0 in an environment of its own, and set {_SETTING} to its python (now {python})",
    )


def suite_names() -> SuiteNames:
    """Tasksets are modules of one's own; there is no list of them."""
    return {"MODULE": "a module or file.py that exports one verifiers Taskset in __all__"}


def load(argument: str | None = None) -> EnvironmentSpec:
    """``MODULE`` or ``FILE.py``."""
    if not argument:
        raise ConfigError("verifiers takes a module or a file, as in verifiers:my_taskset.py")
    if argument.endswith(".py") and not Path(argument).is_file():
        raise ConfigError(f"no file {argument} for verifiers:{argument}")
    module = str(Path(argument).resolve()) if argument.endswith(".py") else argument
    worker = _running()
    try:
        rows = worker.call("rows", module=module, limit=_TASKS)
    except WorkerError as error:
        raise ConfigError(f"verifiers:{argument} cannot be loaded: {error}") from error
    items = [_item(row, index) for index, row in enumerate(rows)]
    system = next((row["system"] for row in rows if row["system"]), "")
    tasks = split_items(f"verifiers:{argument}", items, system_prompt=system)

    def judge(item: Item, text: str) -> Verdict:
        try:
            result = worker.call("score", module=module, limit=_TASKS, index=item.columns["index"], reply=text)
        except WorkerError as error:
            return Verdict(score=None, given=text, error=f"rewards of {argument}: {error}")
        problem = "no reward of this task can be computed without a sandbox" if result["reward"] is None else None
        return Verdict(score=result["reward"], given=text or None, error=problem)

    return one_turn_of(
        tasks,
        items=tasks.splits["train"],
        judge=judge,
        graders=[score_grader(f"the @vf.reward functions of {argument}", limits=None)],
        summary=f"{len(items)} tasks of the verifiers taskset {argument}",
        write=lambda _, answer: answer,
    )


def _item(row: dict[str, str | None], index: int) -> Item:
    return Item(question=row["question"] or "", answer=str(row["answer"] or ""), columns={"index": index})
