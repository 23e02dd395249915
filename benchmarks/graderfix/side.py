"""Audits one version of one grader in a process of its own: `side.py FOLDER NAME SEED OUT`. FOLDER holds reasoning_gym as it was."""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from gradus.auditing.result import verdict_of
from gradus.auditing.text.run import audit_text
from gradus.auditing.text.tasks import TextSubject, TextTask

_TASKS = 48


def main() -> None:
    folder, name, seed, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    started = time.monotonic()
    try:
        subject = _subject(name, int(seed))
    except Exception as error:  # an old version may need what is not installed
        Path(out).write_text(json.dumps({"verdict": "not run", "evidence": [f"{type(error).__name__}: {error}"[:300]]}))
        return
    checks = audit_text(subject, seed=int(seed)).checks
    failed = [check for check in checks if check.status == "fail"]
    said = {"verdict": verdict_of(checks), "evidence": [f"{check.name}: {check.evidence}" for check in failed]}
    Path(out).write_text(json.dumps({**said, "seconds": round(time.monotonic() - started, 1)}))


def _subject(name: str, seed: int) -> TextSubject:
    """Different questions of the data set, and its own score_answer."""
    made: Any = importlib.import_module("reasoning_gym").create_dataset(name, size=2 * _TASKS, seed=seed)
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

    return TextSubject(name=name, grader="score_answer", tasks=tasks, judge=judge, functions=[made.score_answer])


if __name__ == "__main__":
    main()
