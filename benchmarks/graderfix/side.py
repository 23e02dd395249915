"""Audits one version of one grader in a process of its own: `side.py FOLDER GRADER SEED OUT BY`. FOLDER holds its files as they were.

BY is gradus, or one of the rivals.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graderfix.rivals import RIVALS
from graderfix.rows import rows
from gradus.auditing.result import verdict_of
from gradus.auditing.run import AuditSettings, audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask

_TASKS = 48
SHARE = 0.3  # of gold: an answer without the task, or a wrong one, that earns so much is a find, whatever the verdict
_HEAVY = ("torch", "transformers", "datasets", "trl", "openai")
_ABSENT = ("litellm", "absl", "langdetect", "dotenv", "e2b_code_interpreter", "IFEvalG")


def main() -> None:
    folder, text, seed, out, by = sys.argv[1:]
    grader: dict[str, Any] = json.loads(text)
    folder = str(Path(folder, grader.get("root", "")))
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    started = time.monotonic()
    verdict, evidence, shares = _verdict(grader, int(seed), folder, by)
    seconds = round(time.monotonic() - started, 1)
    document = {"verdict": verdict, "evidence": evidence, "shares": shares, "seconds": seconds}
    Path(out).write_text(json.dumps(document))


def _verdict(grader: dict[str, Any], seed: int, folder: str, by: str) -> tuple[str, list[str], dict[str, float]]:
    """The verdict, the evidence of what failed or has a large share, and the shares of the figure."""
    try:
        subject = (_with_rows if "call" in grader else _of_reasoning_gym)(grader, seed, folder)
    except Exception as error:  # an old version may need what is not installed
        return "not run", [f"{type(error).__name__}: {error}"[:300]], {}
    if by != "gradus":
        return *RIVALS[by](subject, "call" in grader), {}
    checks = audit_text(subject, AuditSettings(seed=seed))[0]
    shares: dict[str, float] = {}
    for check in checks:
        for name in ("free", "near") if check.subject == "figure" else ():
            shares[name] = (check.measured[name] or {"share": 0.0})["share"]
    shown = [
        check
        for check in checks
        if check.status == "fail" or (check.subject == "figure" and max(shares.values()) >= SHARE)
    ]
    return verdict_of(checks), [f"{check.subject}: {check.evidence}" for check in shown], shares


def _of_reasoning_gym(grader: dict[str, Any], seed: int, _: str) -> TextSubject:
    """Different questions of the data set, and its own score_answer."""
    made: Any = importlib.import_module("reasoning_gym").create_dataset(grader["name"], size=2 * _TASKS, seed=seed)
    entries: dict[str, dict[str, Any]] = {}
    for number in range(2 * _TASKS):
        entry = made[number]
        if entry["answer"] is not None and len(entries) < _TASKS:
            entries.setdefault(entry["question"], entry)
    tasks = [
        TextTask(key=str(number), prompt=question, gold=str(entry["answer"]))
        for number, (question, entry) in enumerate(entries.items())
    ]
    by_key = dict(zip((task.key for task in tasks), entries.values(), strict=True))

    def judge(task: TextTask, answer: str) -> float:
        return float(made.score_answer(answer, by_key[task.key]))

    return TextSubject(
        name=grader["name"], grader="score_answer", tasks=tasks, judge=judge, functions=[made.score_answer]
    )


def _with_rows(grader: dict[str, Any], seed: int, folder: str) -> TextSubject:
    """Our questions, and the project's function called as pairs.toml says, with `text`, `gold` and `prompt`."""
    module = _imported(grader["module"], Path(folder))
    names = {**vars(module), "thread": _in_a_thread}
    before, after = grader["form"]
    tasks = [
        TextTask(key=str(number), prompt=prompt, gold=gold, before=before, after=after, ordered=grader.get("ordered"))
        for number, (prompt, gold) in enumerate(rows(grader["rows"], _TASKS, seed))
    ]

    def judge(task: TextTask, answer: str) -> float | None:
        earned = eval(grader["call"], {**names, "text": answer, "gold": task.gold, "prompt": task.prompt})
        return None if earned is None else float(earned)

    called = [names.get(name) for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", grader["call"]))]
    own = [each for each in called if each is not None and getattr(each, "__module__", None) == module.__name__]
    return TextSubject(name=grader["name"], grader=grader["call"], tasks=tasks, judge=judge, functions=own)


def _in_a_thread(function: Any, *values: Any) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *values).result()


def _imported(name: str, folder: Path) -> ModuleType:
    """A module of the folder. What it imports beside, of its own project or heavy, is a stand-in."""
    importlib.import_module("math_verify")  # it and sympy import what they need before anything is stood in for
    top, *inner = name.split(".")[:-1]
    for depth in range(len(inner) + 1):  # so that an installed package of that name is not taken
        (folder.joinpath(top, *inner[:depth]) / "__init__.py").touch()
    sys.meta_path.insert(0, _StandIns([package for package in (*_HEAVY, *_ABSENT) if package != top]))
    sys.meta_path.append(_StandIns([top]))
    return importlib.import_module(name)


class _Registry(type):
    """Of classes that are stood in for: an attribute, as a registry's decorator, is a stand-in too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn()


class _StandIn(metaclass=_Registry):
    """Anything: a base class, a decorator that changes nothing, a context, a logger."""

    def __init__(self, *values: Any, **named: Any) -> None:
        vars(self).update(named)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return values[0] if values and callable(values[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn()

    def __enter__(self) -> _StandIn:
        return self

    def __exit__(self, *error: Any) -> None:
        return None


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_StandIn,), {})


class _StandIns(MetaPathFinder, Loader):
    """Finds modules of these packages."""

    def __init__(self, packages: list[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = fullname.split(".")[0] in self._packages
        return importlib.util.spec_from_loader(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


if __name__ == "__main__":
    main()
