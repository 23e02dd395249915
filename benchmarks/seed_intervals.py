"""How often intervals over training seeds and tasks hold the truth, beside an interval over tasks alone and a bootstrap of both.

    python benchmarks/seed_intervals.py [--repetitions 2000]

Scores are drawn as mean + seed + task + noise with a mean of 0.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from _shared import print_line

from gradus.stats import crossed_difference, crossed_interval, mean_interval

MIXES = {
    "no effect of seeds": (0.0, 1.0, 1.0),
    "small": (0.1, 1.0, 0.5),
    "as large as of tasks' means": (0.2, 1.0, 1.0),
    "large": (0.5, 1.0, 1.0),
}
WAYS = ("ours", "tasks alone", "bootstrap of both")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| seeds | tasks | effect of seeds | " + " | ".join(WAYS) + " | false wins |")
    print("|---" * 7 + "|")
    lowest = 1.0
    for seeds, tasks, (name, mix) in itertools.product((3, 5), (50, 200), MIXES.items()):
        shares = coverage(rng, seeds, tasks, mix, given.repetitions)
        lowest = min(lowest, shares[0])
        print(f"| {seeds} | {tasks} | {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    print_line("seed_intervals", ratio=lowest / 0.95, ours=lowest, other=0.95, unit="coverage", runs=given.repetitions)


def table(rng: np.random.Generator, seeds: int, tasks: np.ndarray, mix: tuple[float, float, float]) -> np.ndarray:
    """Scores (seeds, tasks) for tasks of given difficulty."""
    return mix[0] * rng.standard_normal((seeds, 1)) + tasks + mix[2] * rng.standard_normal((seeds, tasks.size))


def coverage(
    rng: np.random.Generator, seeds: int, tasks: int, mix: tuple[float, float, float], repetitions: int
) -> list[float]:
    """The share of intervals that hold 0 by each way, and the share of false wins of one method over itself with other seeds."""
    held = np.zeros((repetitions, len(WAYS) + 1))
    draws = [rng.multinomial(size, np.full(size, 1 / size), size=500) / size for size in (seeds, tasks)]
    for row in held:
        difficulty = mix[1] * rng.standard_normal(tasks)
        x, y = (table(rng, seeds, difficulty, mix) for _ in range(2))
        ours, alone = crossed_interval(x.tolist()), mean_interval(x.mean(axis=0).tolist())
        bounds = [(ours.low, ours.high), (alone.low, alone.high), pigeonhole(x, *draws)]
        row[:-1] = [low is not None and high is not None and low <= 0 <= high for low, high in bounds]
        null = crossed_difference(x.tolist(), y.tolist(), matched=False)
        row[-1] = null.p is not None and null.p < 0.05
    return held.mean(axis=0).tolist()


def pigeonhole(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[float, float]:
    """The percentile interval of Owen's pigeonhole bootstrap: seeds and tasks are drawn again, each by itself."""
    low, high = np.quantile(np.sum((rows @ x) * columns, axis=1), [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
