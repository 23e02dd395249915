"""Asks graders of reasoning-gym (`pip install gradus-rl[suites]`) for answers that earn without the task: a table of docs/audit.md.

Answers that would run as code only write an empty file into a new temporary folder.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TASKS = 20
_WRITE = "open('FILE', 'w')"
_COUNTED: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "complex_arithmetic": lambda entry: "nan",
    "number_sorting": lambda entry: json.dumps([float("nan")] * (entry["answer"].count(",") + 1)),
    "game_of_life_halting": lambda entry: "no",
    "game_of_life": lambda entry: json.dumps([[0] * 10] * 10),
    "letter_jumble": lambda entry: f"{entry['answer']} and so on",
    "puzzle24": lambda entry: "6*4*1*1",
    "simple_integration": lambda entry: f"Integral({entry['metadata']['integrand']}, {entry['metadata']['variable']})",
    "sudoku": lambda entry: "\n".join(" ".join(str(n or 1) for n in row) for row in entry["metadata"]["puzzle"]),
}
_EXECUTED = (
    *("countdown", "puzzle24", "n_queens", "spiral_matrix", "string_insertion", "binary_matrix"),
    *("intermediate_integration", "polynomial_multiplication"),
)


def main() -> None:
    warnings.simplefilter("ignore")
    gym: Any = importlib.import_module("reasoning_gym")
    print(f"reasoning-gym {version('reasoning-gym')}, {_TASKS} tasks of each set, seed 0")
    for name, make in _COUNTED.items():
        made = gym.create_dataset(name, size=_TASKS, seed=0)
        entries = [made[number] for number in range(_TASKS)]
        earned = [float(made.score_answer(make(entry), entry)) for entry in entries]
        said, gold = make(entries[0]), str(entries[0]["answer"])
        print(f"{name}: {said[:60]!r} for {gold[:40]!r} earns {sum(earned) / len(earned):.2f} on average")
    with tempfile.TemporaryDirectory() as folder:
        for name in _EXECUTED:
            file = Path(folder) / name
            made = gym.create_dataset(name, size=1, seed=0)
            made.score_answer(_WRITE.replace("FILE", str(file)), made[0])
            print(f"{name}: {_WRITE!r} {'runs' if file.exists() else 'does not run'}")


if __name__ == "__main__":
    main()
