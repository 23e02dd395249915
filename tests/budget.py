"""Prints the lines of Python by room beside their budget; ends with 1 if the library, the guests or the tests are over theirs.

``python -m tests.budget``, which is part of ``make check``. Size is a cost: a capability says in its commit what it took away.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # lines of Python, blank lines and comments too
    "core": 2300,
    "sandbox": 1000,
    "algorithms": 1200,
    "stats": 1100,
    "rewards": 2000,
    "rollouts": 1400,
    "policies": 4700,
    "training": 6600,
    "auditing": 5300,
    "evidence": 5600,
    "runs": 5200,
    "commands": 2900,
    "environments": 2500,
    "interop": 4200,
}
TOTALS = {"src/gradus": 45_000, "src/gradus_worlds": 6_000, "tests": 30_000}


def lines(folder: Path) -> int:
    """Returns the lines of all Python files below a folder."""
    return sum(len(file.read_bytes().splitlines()) for file in folder.rglob("*.py"))


def main() -> int:
    rows = [(name, lines(ROOT / "src/gradus" / name), budget) for name, budget in ROOMS.items()]
    totals = [(name, lines(ROOT / name), budget) for name, budget in TOTALS.items()]
    for name, count, budget in [*rows, *totals]:
        print(f"{name:20} {count:7,} of {budget:6,}{'  over' if count > budget else ''}")
    return int(any(count > budget for _, count, budget in totals))


if __name__ == "__main__":
    sys.exit(main())
