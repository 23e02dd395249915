"""Digests of the data and the code of a run: its rows, rewards, environment and algorithm.

Settings hold names alone. The digests tell whether what a name stands for is still the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from gradus import environments
from gradus.core import EnvironmentSpec, Grader
from gradus.core.naming import file_sources
from gradus.core.values import plain
from gradus.environments.verifiable.items import TableTasks
from gradus.rewards import RewardConfig, find_reward
from gradus.rewards.catalog import BUILT_IN
from gradus.rewards.grading import rewards_of
from gradus.runs.own_code import code_digest

_GIVEN = "python:"  # how a reward function begins that no file holds


def environment_sources(name: str, spec: EnvironmentSpec) -> dict[str, str]:
    """Digests of the rows of a data set and of the code of an environment of one's own, by a name for each."""
    sources: dict[str, str | None] = {}
    if isinstance(spec.data_set, TableTasks):
        sources[_rows_label(spec.data_set.name)] = rows_digest(spec.data_set)
    if not environments.is_registered_by_name(name):
        if name.partition(":")[0] in environments.names():  # an object of this session
            sources[f"code of {name}"] = _spec_digest(spec)
        else:
            sources |= file_sources(name if name.endswith(".py") else name.rpartition(":")[0])
    sources |= spec.sources
    return _known(sources)


def _spec_digest(spec: EnvironmentSpec) -> str | None:
    """A digest of the code that decides about episodes and rewards. Functions of a grader count as rewards, how it is shown does not."""
    graders = [each.compute for each in spec.graders.values() if rewards_of(each) is None]
    code = [spec.make, *graders, spec.train_task, spec.content, spec.true_reward, *spec.policies.values()]
    own = code_digest([each for each in code if each is not None])
    return None if own is None else sha256(f"{own} {spec.max_turns} {spec.teacher}".encode()).hexdigest()


def reward_sources(rewards: Sequence[RewardConfig], grader: Grader) -> dict[str, str]:
    """Digests of reward functions of one's own, by name. ``grader``: its functions count if a recipe has no rewards."""
    composed = None if rewards else rewards_of(grader)
    given = composed.functions if composed else {}
    sources = {f"code of {name}": code_digest([function]) for name, function in given.items()}
    for name in (each.function for each in rewards):
        if name.startswith(_GIVEN):
            sources[f"code of {name.removeprefix(_GIVEN)}"] = code_digest([find_reward(name)])
        elif name not in BUILT_IN:
            sources |= file_sources(name.rpartition(":")[0])
    return _known(sources)


def algorithm_sources(name: str) -> dict[str, str]:
    """The code of an algorithm that is not Gradus's own -> its digest."""
    from gradus.algorithms import (
        find_algorithm,
        is_registered_here,
    )  # it brings torch, which a scripted teacher does not need

    algorithm = find_algorithm(name)
    functions = [algorithm.loss, algorithm.advantage]
    if not is_registered_here(name):
        modules = [str(getattr(each, "__module__", "gradus")) for each in functions]
        files = [file_sources(each) for each in modules if each.partition(".")[0] != "gradus"]
        return {label: value for each in files for label, value in each.items()}
    told = [algorithm.scale, algorithm.clip, algorithm.credit, algorithm.baseline]
    return {f"code of {name}": sha256(f"{code_digest(functions)} {told}".encode()).hexdigest()}


def rows_digest(tasks: TableTasks) -> str:
    """A digest of the rows as they are used."""
    items = {
        split: [
            [each.question, each.answer, each.worked, each.system, dict(each.columns), *each.messages]
            for each in several
        ]
        for split, several in tasks.splits.items()
    }
    return sha256(json.dumps(plain([tasks.system_prompt, items])).encode()).hexdigest()


def _rows_label(name: str) -> str:
    """``rows of e.jsonl`` for ``jsonl:data/e.jsonl?answer=label``, and ``rows`` for those that were given."""
    place = name.partition(":")[2].partition("?")[0]
    return f"rows of {Path(place).name}" if place else "rows" if name == "rows" else f"rows of {name}"


def _known(sources: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in sources.items() if value is not None}
