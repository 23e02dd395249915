"""``verifiers:MODULE``: tasksets of verifiers 0.4, rewarded by their own functions.

MODULE is a module that is installed where verifiers is, or a file ``my_taskset.py``. The pins of verifiers conflict with ours, so
it runs in a process of its own: GRADUS_VERIFIERS_PYTHON names the Python of the environment that has it. Tasks take one reply.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Message
from gradus.core.naming import file_sources
from gradus.core.values import Json
from gradus.environments.verifiable.environment import Judgement
from gradus.environments.verifiable.from_rows import score_grader
from gradus.environments.verifiable.items import Item, TableTasks, split_items
from gradus.environments.verifiable.spec import answering_of, one_turn_of
from gradus.interop.suites.naming import SuiteNames, started
from gradus.sandbox.worker import Worker, WorkerError

_SETTING = "GRADUS_VERIFIERS_PYTHON"
_TASKS = 2000  # of an endless taskset


@cache
def _worker(python: str, code: frozenset[tuple[str, str]]) -> Worker:
    """The process for files of this code. Files of one name, and a file before and after a change, do not meet in one process."""
    return Worker(Path(__file__).parent / "workers" / "verifiers_worker.py", python=python, cpu_seconds=30, memory=0)


def _running(place: str) -> Worker:
    python = os.environ.get(_SETTING) or sys.executable
    code = {"": place, **file_sources(place)} if place.endswith(".py") else {}
    requirement = f"verifiers==0.4.0 in an environment of its own, and set {_SETTING} to its python (now {python})"
    return started(_worker(python, frozenset(code.items())), "verifiers", requirement)


def suite_names() -> SuiteNames:
    """Says what a name is: tasksets are modules of one's own, and nothing lists them."""
    return {"MODULE": "a module or file.py with one verifiers Taskset in __all__, whose tasks take one reply"}


def load(argument: str | None = None) -> EnvironmentSpec:
    """``MODULE`` or ``FILE.py``."""
    if not argument:
        raise ConfigError("verifiers takes a module or a file, as in verifiers:my_taskset.py")
    if argument.endswith(".py") and not Path(argument).is_file():
        raise ConfigError(f"no file {argument} for verifiers:{argument}")
    path = str(Path(argument).resolve()) if argument.endswith(".py") else argument
    module = {"module": path, "limit": _TASKS}
    worker = _running(path)
    try:
        rows = worker.call("describe", **module)
    except WorkerError as error:
        raise ConfigError(f"verifiers:{argument} cannot be loaded: {error}") from error
    # Most tasksets have one system prompt for all; a row with another keeps its own.
    system = next((row["system"] for row in rows if row["system"]), "")
    items = [_item(row, index) for index, row in enumerate(rows)]
    tasks = split_items(f"verifiers:{argument}", items, None, system_prompt=system)
    sources = file_sources(path) if path.endswith(".py") else {}
    return replace(_one_reply(worker, tasks, module, rows), sources=sources)


def _one_reply(worker: Worker, tasks: TableTasks, module: Json, rows: Sequence[Json]) -> EnvironmentSpec:
    """Tasks that take one reply."""
    name = tasks.name.removeprefix("verifiers:")
    items = tasks.splits["train"]
    systems = dict.fromkeys(row["system"] for row in rows if row["system"] not in ("", tasks.system_prompt))

    def judge(item: Item, text: str) -> Judgement:
        index = item.columns["index"]
        try:
            reward = worker.call("score", **module, index=index, reply=text)
        except WorkerError as error:
            return Judgement(score=None, answer=text, error=f"rewards of {name}: {error}")
        problem = "no reward of this task can be computed without a sandbox" if reward is None else None
        return Judgement(score=reward, answer=text or None, error=problem)

    answering = answering_of(
        items,
        tasks.system_prompt,
        write=lambda _, answer: answer,
        texts=lambda: [*items, *(Item(question=system, answer="") for system in systems)],
    )
    return one_turn_of(
        tasks,
        answering,
        judge=judge,
        graders=[score_grader(f"the @vf.reward functions of {name}", limits=None)],
        summary=f"{len(rows)} tasks of the verifiers taskset {name}",
    )


def _item(row: Json, index: int) -> Item:
    answer = row["answer"]  # 0 and False are answers
    several = [message["role"] for message in row["messages"]] != ["user"]
    return Item(
        question=row["question"],
        answer="" if answer is None else str(answer),
        columns={"index": index},
        system=row["system"],
        messages=tuple(Message(**message) for message in row["messages"]) if several else (),
    )
