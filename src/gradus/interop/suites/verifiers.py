"""``verifiers:MODULE``: environments of verifiers 0.1 to 0.3, and tasksets of 0.4, rewarded by their own functions.

MODULE is a module that is installed where verifiers is, or a file ``my_taskset.py``. The pins of verifiers conflict with ours, so
it runs in a process of its own: GRADUS_VERIFIERS_PYTHON names the Python of the environment that has it. Tasks that take one reply are
scored by it alone; environments that say more than once something, and tasksets with tools, have episodes of several turns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.worker import Worker, WorkerError
from gradus.environments.verifiable.datasets import split_items
from gradus.environments.verifiable.environment import Verdict
from gradus.environments.verifiable.from_rows import one_turn_of, score_grader
from gradus.environments.verifiable.items import Item, TableTasks
from gradus.interop.suites.naming import SuiteNames, option_value, started
from gradus.interop.suites.verifiers_episodes import episode_spec

_SETTING = "GRADUS_VERIFIERS_PYTHON"
_TASKS = 2000  # of an endless taskset
_TURNS = 10  # of what names no limit itself


@cache
def _worker(python: str) -> Worker:
    return Worker(Path(__file__).parent / "workers" / "verifiers_worker.py", python=python, cpu_seconds=30, memory=0)


def _running() -> Worker:
    python = os.environ.get(_SETTING) or sys.executable
    return started(
        _worker(python),
        "verifiers",
        f"verifiers==0.4.0 (0.3.1 for environments with load_environment) in an environment of its own, and set {_SETTING} to its "
        f"python (now {python})",
    )


def suite_names() -> SuiteNames:
    """Tasksets and environments are modules of one's own; there is no list of them."""
    return {"MODULE": "a module or file.py with one verifiers Taskset in __all__, or with load_environment"}


def load(argument: str | None = None) -> EnvironmentSpec:
    """``MODULE`` or ``FILE.py``, and options: ``?turns=N`` limits episodes, all others go to ``load_environment``."""
    if not argument:
        raise ConfigError("verifiers takes a module or a file, as in verifiers:my_taskset.py")
    place, _, query = argument.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    turns = options.pop("turns", None)
    if turns is not None and (not turns.isdecimal() or int(turns) < 1):
        raise ConfigError(f"verifiers:{place} takes the option turns=NUMBER, got turns={turns}")
    if place.endswith(".py") and not Path(place).is_file():
        raise ConfigError(f"no file {place} for verifiers:{argument}")
    path = str(Path(place).resolve()) if place.endswith(".py") else place
    given = json.dumps({key: option_value(text) for key, text in options.items()})
    module = {"module": path, "limit": _TASKS, "options": given}
    worker = _running()
    try:
        about = worker.call("describe", **module)
    except WorkerError as error:
        raise ConfigError(f"verifiers:{argument} cannot be loaded: {error}") from error
    items = [_item(row, index) for index, row in enumerate(about["rows"])]
    system = next((row["system"] for row in about["rows"] if row["system"]), "")
    tasks = split_items(f"verifiers:{argument}", items, system_prompt=system)
    if about["kind"] == "one reply":
        return _one_reply(worker, tasks, module, len(items))
    kind = "verifiers environment" if about["kind"] == "environment" else "verifiers taskset with tools"
    summary = f"{len(items)} tasks of the {kind} {argument}"
    return episode_spec(worker, tasks, module, summary=summary, max_turns=int(turns or about["turns"] or _TURNS))


def _one_reply(worker: Worker, tasks: TableTasks, module: Mapping[str, Any], size: int) -> EnvironmentSpec:
    """Tasks that take one reply."""
    name = tasks.name.removeprefix("verifiers:")

    def judge(item: Item, text: str) -> Verdict:
        index = item.columns["index"]
        try:
            result = worker.call("score", module=module["module"], limit=_TASKS, index=index, reply=text)
        except WorkerError as error:
            return Verdict(score=None, given=text, error=f"rewards of {name}: {error}")
        problem = "no reward of this task can be computed without a sandbox" if result["reward"] is None else None
        return Verdict(score=result["reward"], given=text or None, error=problem)

    return one_turn_of(
        tasks,
        items=tasks.splits["train"],
        judge=judge,
        graders=[score_grader(f"the @vf.reward functions of {name}", limits=None)],
        summary=f"{size} tasks of the verifiers taskset {name}",
        write=lambda _, answer: answer,
    )


def _item(row: dict[str, Any], index: int) -> Item:
    answer = row["answer"]  # 0 and False are answers
    return Item(question=row["question"] or "", answer="" if answer is None else str(answer), columns={"index": index})
