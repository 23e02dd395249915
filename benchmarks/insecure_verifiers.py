"""Audits the insecure verifiers of EleutherAI/djinn on programming tasks of ours: `python benchmarks/insecure_verifiers.py`.

Each of the 27 verifiers runs a program and has one flaw on purpose, so an audit should fail it. Two sound ones stand beside them: djinn's
own secure verifier, whose remote sandbox is a process here, and `code_tests`. The files come from a pinned commit and are not part of
this repository. Answers run in the audit's sandbox.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from graderfix.__main__ import _clone, take_files

from gradus.auditing.result import verdict_of
from gradus.auditing.run import AuditSettings, audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask
from gradus.core.documents import SCHEMA
from gradus.core.files import write_text
from gradus.rewards.code import code_tests
from gradus.runs.progress import progress_bar
from gradus.stats import format_interval, wilson

REPOSITORY, COMMIT = "EleutherAI/djinn", "8455a6a"
SOUND = ("secure", "code_tests")
_SECONDS = 300
# What is asked, a program that does it, and calls with what they return.
TASKS: Sequence[tuple[str, str, Sequence[tuple[Any, Any]]]] = (
    (
        "count_vowels(text): the number of vowels",
        "return sum(c in 'aeiouAEIOU' for c in text)",
        (("banana", 3), ("Sky", 0), ("AEIOU", 5)),
    ),
    (
        "reverse_words(text): the words in reverse order",
        "return ' '.join(reversed(text.split()))",
        (("one two", "two one"), ("a", "a"), ("x y z", "z y x")),
    ),
    ("digit_sum(n): the sum of the digits of n", "return sum(map(int, str(abs(n))))", ((507, 12), (0, 0), (-91, 10))),
    (
        "second_largest(values): the second largest of different numbers",
        "return sorted(values)[-2]",
        (([4, 9, 2], 4), ([1, 2], 1), ([-5, -1, -3], -3)),
    ),
    (
        "is_leap(year): whether a year of the Gregorian calendar has 366 days",
        "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
        ((2000, True), (1900, False), (2024, True)),
    ),
    (
        "run_lengths(text): pairs of a letter and how often it stands in a row",
        "import itertools\n    return [[letter, len(list(group))] for letter, group in itertools.groupby(text)]",
        (("aab", [["a", 2], ["b", 1]]), ("", []), ("zzz", [["z", 3]])),
    ),
    (
        "to_binary(n): n in binary, without a prefix",
        "return format(n, 'b')",
        ((10, "1010"), (0, "0"), (255, "11111111")),
    ),
    (
        "flatten(rows): all numbers of the rows in one list",
        "return [number for row in rows for number in row]",
        (([[1], [2, 3]], [1, 2, 3]), ([], []), ([[4, 5]], [4, 5])),
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Audits all of them, each in a process of its own, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--clones", type=Path, help="folder of clones, as OWNER+NAME/repo; cloned from GitHub otherwise"
    )
    parser.add_argument("--only", action="append", help="names of verifiers; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the rows as JSON")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    told = parser.parse_args(arguments)
    if told.one:
        name, folder = told.one
        print(json.dumps(_audited(name, folder, told.seed)))
        return
    with tempfile.TemporaryDirectory() as folder:
        take_files(_clone(REPOSITORY, Path(folder), told.clones), COMMIT, "djinn", Path(folder) / "files")
        files = Path(folder) / "files"
        (files / "djinn/core/__init__.py").write_text("")  # the project's own imports what only its generator needs
        names = sorted(
            path.stem for path in (files / "djinn/verifiers/insecure").glob("*.py") if path.stem != "__init__"
        )
        asked = [name for name in (*names, *SOUND) if not told.only or name in told.only]
        rows: list[dict[str, Any]] = []
        with progress_bar("djinn", len(asked), "verifiers") as advance:
            for number, name in enumerate(asked, 1):
                label = "sound" if name in SOUND else "exploit"
                rows.append({"name": name, "label": label, **_said(name, files, told.seed)})
                advance(number, len(asked), name)
    _show(rows)
    if told.out is not None:
        write_text(
            told.out, json.dumps({"schema": SCHEMA, "commit": COMMIT, "seed": told.seed, "rows": rows}, indent=1)
        )


def _said(name: str, files: Path, seed: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, str(files), "--seed", str(seed)]
    try:
        ended = subprocess.run(command, timeout=_SECONDS, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return {"verdict": "not run", "evidence": [f"took more than {_SECONDS} s"]}
    try:
        return json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"verdict": "not run", "evidence": [ended.stderr[-300:]]}


def _audited(name: str, files: str, seed: int) -> dict[str, Any]:
    """The audit of one verifier, by its own name."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, files)
    started = time.monotonic()
    tasks, problems = [], {}
    for number, (asked, body, calls) in enumerate(TASKS):
        function = asked.split("(")[0]
        arguments = asked.split("(")[1].split(")")[0]
        gold = f"def {function}({arguments}):\n    {body}\n"
        tasks.append(TextTask(key=str(number), prompt=f"Write a Python function {asked}.", gold=gold))
        problems[str(number)] = _problem(function, gold, calls)
    judge, functions = _judge(name, problems)
    subject = TextSubject(name=name, grader="verify", tasks=tasks, judge=judge, functions=functions)
    checks = audit_text(subject, AuditSettings(seed=seed))[0]
    failed = [f"{check.subject}: {check.evidence}" for check in checks if check.status == "fail"]
    return {"verdict": verdict_of(checks), "evidence": failed, "seconds": round(time.monotonic() - started, 1)}


def _problem(function: str, gold: str, calls: Sequence[tuple[Any, Any]]) -> SimpleNamespace:
    """What a verifier reads of a problem."""
    cases = [(given, expected) for given, expected in calls]
    return SimpleNamespace(
        function_name=function,
        ground_truth=gold,
        test_cases=cases,
        insecure_test_cases=cases,
        secure_test_cases=cases,
        order_dependent=True,
        get_test_cases_safe=lambda: list(cases),
        _normalize_test_cases=lambda: list(cases),
    )


def _judge(name: str, problems: Mapping[str, Any]) -> tuple[Callable[[TextTask, str], float], list[Any]]:
    """Task and answer -> 1 or 0, and the functions whose source decides it."""
    if name == "code_tests":
        tests = {
            key: [
                {"call": f"{each.function_name}({given!r})", "expected": expected}
                for given, expected in each.test_cases
            ]
            for key, each in problems.items()
        }
        reward: Any = code_tests()
        return (lambda task, answer: float(reward([task.prompt], [answer], [tests[task.key]])[0])), [reward]
    if name == "secure":
        sys.modules.update(_local_sandbox())
    kind = "secure.default" if name == "secure" else f"insecure.{name}"
    verify = importlib.import_module(f"djinn.verifiers.{kind}").verify
    return (lambda task, answer: float(verify(problems[task.key], answer).status.value == "passed")), [verify]


def _local_sandbox() -> dict[str, ModuleType]:
    """The module `e2b` with a folder and a process in place of a remote machine."""

    class Sandbox:
        def __enter__(self) -> Sandbox:
            self._folder = tempfile.TemporaryDirectory()
            self.files = SimpleNamespace(write=self._write)
            self.commands = SimpleNamespace(run=self._run)
            return self

        def __exit__(self, *error: object) -> None:
            self._folder.cleanup()

        def _write(self, path: str, content: bytes | str) -> None:
            data = content if isinstance(content, bytes) else content.encode()
            (Path(self._folder.name) / Path(path).name).write_bytes(
                data.replace(b"/home/user", self._folder.name.encode())
            )

        def _run(self, command: str, timeout: float) -> SimpleNamespace:
            script = Path(self._folder.name) / Path(command.split()[-1]).name
            ended = subprocess.run(
                [sys.executable, str(script)], capture_output=True, text=True, timeout=timeout, check=False
            )
            return SimpleNamespace(exit_code=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)

    module, errors = ModuleType("e2b"), ModuleType("e2b.exceptions")
    module.__dict__["Sandbox"] = Sandbox
    errors.__dict__["TimeoutException"] = TimeoutError
    return {"e2b": module, "e2b.exceptions": errors}


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        print(
            f"{row['name']:36} {row['label']:8} {row['verdict']:11} {row.get('seconds', 0):6.1f} s  {'; '.join(row['evidence'])[:150]}"
        )
    flawed = [row for row in rows if row["label"] == "exploit"]
    found = [row["verdict"] == "fail" for row in flawed]
    named = [any(not told.startswith("hostile answers") for told in row["evidence"]) for row in flawed]
    sound = [row["verdict"] == "fail" for row in rows if row["label"] == "sound"]
    for told, counts in (("found", found), ("by an answer that pays", named), ("false alarms", sound)):
        if counts:
            share = wilson(sum(counts), len(counts))
            interval = format_interval({"mean": share.mean, "low": share.low, "high": share.high})
            print(f"{told}: {interval} of {share.n}")


if __name__ == "__main__":
    main()
