"""What an episode costs by its turns, Gradus beside TRL: a step of GRPO on Rhythm with 7 to 112 turns, as a figure.

Each length is a process of `trl_rhythm.py` in which the steps of both alternate; CPU seconds of one thread, so that a busy machine says
the same. What is measured is kept in `--kept`, and a broken run goes on. TRL reads the history again at every turn, ours does not.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradus.core.files import write_json, write_text

TURNS = (7, 14, 28, 56, 112)
SIZE = 8  # members of a group, as in trl_rhythm.py
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "cost_by_turns.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 320, 64, 40, 88, 44


def measured(turns: int, groups: int, steps: int) -> dict[str, float]:
    """CPU seconds of an episode, ours and theirs."""
    sizes = ["--turns", str(turns), "--groups", str(groups), "--rows", str(groups * SIZE), "--steps", str(steps)]
    command = [sys.executable, str(Path(__file__).with_name("trl_rhythm.py")), *sizes, "--cpu-time", "--no-memory"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    record = json.loads(done.stdout.strip().splitlines()[-1])
    episodes = groups * SIZE
    return {
        "ours": record["ours"] / episodes,
        "other": record["other"] / episodes,
        "steps": steps,
        "episodes": episodes,
    }


def figure(points: Mapping[int, Mapping[str, float]]) -> str:
    """Seconds an episode against turns, both on scales of powers, with the slope of the last doubling beside each line."""
    values = [value for point in points.values() for value in (point["ours"], point["other"])]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = min(points), max(points)

    def x(turns: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(turns / first) / max(1.0, math.log2(last / first))

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(value) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img">',
        "<title>CPU seconds of an episode of GRPO against its turns, Gradus and TRL</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">CPU seconds of an episode, by its turns (both scales logarithmic)</text>',
    ]
    for power in range(low, high + 1):
        level = y(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    under = f'y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
    parts += [f'<text x="{x(turns):.1f}" {under}>{turns}</text>' for turns in points]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">turns of an episode</text>')
    for side, name, color in (("other", "TRL", "#b3541e"), ("ours", "Gradus", "#1f5fa8")):
        places = " ".join(f"{x(turns):.1f},{y(point[side]):.1f}" for turns, point in points.items())
        parts.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
        for turns, point in points.items():
            parts.append(f'<circle cx="{x(turns):.1f}" cy="{y(point[side]):.1f}" r="3.5" fill="{color}"/>')
        end = points[last][side]
        parts.append(f'<text x="{x(last) + 8:.1f}" y="{y(end) + 4:.1f}" fill="{color}">{name}, {end:.2g} s</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="*", default=TURNS)
    parser.add_argument("--groups", type=int, default=2, help="of 8 episodes, in each step")
    parser.add_argument(
        "--steps", type=int, default=3, help="measured steps of each side, after one that is not; medians"
    )
    parser.add_argument("--kept", type=Path, default=Path("cost_by_turns.json"), help="what is measured already")
    parser.add_argument("--figure", type=Path, help=f"where the SVG goes (that of the documentation: {FIGURE.name})")
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    for turns in options.turns:
        if str(turns) not in kept:
            kept[str(turns)] = measured(turns, options.groups, options.steps)
            write_json(options.kept, kept)
        point = kept[str(turns)]
        print(
            f"{turns:4d} turns: {point['ours']:.3f} and {point['other']:.3f} CPU s an episode, {point['other'] / point['ours']:.1f} x",
            flush=True,
        )
    points = {int(turns): kept[turns] for turns in sorted(kept, key=int)}
    if options.figure:
        write_text(options.figure, figure(points))
    ratios = {turns: round(point["other"] / point["ours"], 2) for turns, point in points.items()}
    longest = points[max(points)]
    line = {"name": "cost_by_turns", "ratio": ratios[max(points)], "ours": longest["ours"], "other": longest["other"]}
    print(
        json.dumps(
            {**line, "unit": "CPU s an episode of the most turns", "runs": int(longest["steps"]), "ratios": ratios}
        )
    )


if __name__ == "__main__":
    main()
