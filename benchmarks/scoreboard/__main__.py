"""Audits graders of which it is known whether they are sound: `python benchmarks/scoreboard --part planted`.

It prints detection and false alarms, then one JSON line. Takes minutes to an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gradus.core.documents import SCHEMA
from gradus.core.files import write_text
from scoreboard.leaderboard import write_leaderboard
from scoreboard.parts import PARTS, run_scoreboard, scoreboard_page


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/scoreboard", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="all without it; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the page and for what is needed to go on there")
    told = parser.parse_args(arguments)
    results = [run_scoreboard(part, seed=told.seed, folder=told.out) for part in told.part or PARTS]
    page, document = scoreboard_page(results), json.dumps({"schema": SCHEMA, "parts": results})
    print(page)
    print(document)
    if told.out is not None:
        write_text(told.out / "audit.md", page)
        for result in results:
            if result["part"] == "reasoning-gym":
                write_leaderboard(result, told.out)


if __name__ == "__main__":
    main()
