"""Digests of the data and the code of a run: its rows, rewards, environment and algorithm.

Settings hold names alone. The digests tell whether what a name stands for is still the same.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from gradus import environments
from gradus.core import EnvironmentSpec, Grader
from gradus.core.naming import IMPORTED, file_sources, imported_files
from gradus.core.values import plain
from gradus.environments.verifiable.items import TableTasks
from gradus.rewards import RewardConfig, find_reward
from gradus.rewards.catalog import BUILT_IN
from gradus.rewards.grading import rewards_of

_LIBRARY = {"gradus", *sys.stdlib_module_names} - {"builtins"}  # where a class is that exec made
_SESSION = uuid4().hex
_GIVEN = "python:"  # how a reward function begins that lives in this session alone


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


def code_digest(objects: Iterable[Any]) -> str | None:
    """Returns a digest of the text of functions, classes and callable objects; None if all come with Gradus or an installed package.

    What they enclose and are partially given counts too. What they call does not, so after a change there a stage needs redo.
    An object without a text, as at a prompt, is the same in this session only.
    """
    texts = [text for each in objects if (text := _text(each)) is not None]
    return sha256("\0".join(texts).encode(errors="backslashreplace")).hexdigest() if texts else None


def _text(value: Any, *, outside: bool = True) -> str | None:
    """The text of an object of one's own, with what it holds; of a library's the objects of one's own that it holds itself."""
    if isinstance(value, partial):
        text = _text(value.func)
        return None if text is None else f"{text} {value.args!r} {value.keywords!r}"
    value = value.__self__ if inspect.ismethod(value) else value
    value = inspect.unwrap(value) if callable(value) else value
    kind = value if inspect.isfunction(value) or isinstance(value, type) else type(value)
    held = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) else {}
    if kind is not value:
        held = getattr(value, "__dict__", {})
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None) or ""
    if str(kind.__module__).partition(".")[0] in _LIBRARY or {"site-packages", "dist-packages"} & {*Path(file).parts}:
        texts = [_text(each, outside=False) for each in held.values() if outside and callable(each)]
        return " ".join(filter(None, texts)) or None
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        text = f"{_SESSION} {id(kind)}"
    return text + "".join(f" {name}={each!r}" for name, each in held.items() if isinstance(each, str | int | float))


def forget_changed_files() -> None:
    """Let a file that was imported by its path be imported anew if it, or a file of one's own that it imports, was changed since.

    For the beginning of a call in a process that lives long, as a notebook does. Within a call nothing changes.
    """
    for key, since in [*IMPORTED.items()]:
        path = Path(getattr(sys.modules.get(key), "__file__", None) or "")
        files = {path, *imported_files(path, path.parent).values()} if path.is_file() else set[Path]()
        if any(each.stat().st_mtime > since for each in files):
            del IMPORTED[key]
            known = [(name, getattr(each, "__file__", None)) for name, each in sys.modules.items()]
            for name in [name for name, file in known if file and Path(file) in files]:
                if name != "__main__" and name.partition(".")[0] not in _LIBRARY:
                    del sys.modules[name]
