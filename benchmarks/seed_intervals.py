"""How often intervals over training seeds and tasks hold the truth, beside other ways to make them; and a null experiment.

    python benchmarks/seed_intervals.py [--repetitions 2000] [--null RUN RUN]

Scores are drawn as mean + seed + task + noise with a mean of 0. ``--null`` is a null experiment with real training instead: two folders of
`gradus run ... --seeds N` that differ in a setting that does nothing, so each claimed difference is false. `benchmarks/ablations.py
null --seeds 40` makes them: the second trains GRPO on other tasks of the same kind. Both are drawn from three seeds at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from gradus.rollouts import read_episodes
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
    parser.add_argument("--null", type=Path, nargs=2, metavar="RUN")
    parser.add_argument("--draws", type=int, default=4000, help="Draws of seeds in a null experiment.")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    if given.null:
        null_experiment(rng, *(_scores(run) for run in given.null), draws=given.draws)
        return
    print("| seeds | tasks | effect of seeds | " + " | ".join(WAYS) + " | false wins |")
    print("|---" * 7 + "|")
    lowest = 1.0
    for seeds, tasks, (name, mix) in itertools.product((3, 5), (50, 200), MIXES.items()):
        shares = coverage(rng, seeds, tasks, mix, given.repetitions)
        lowest = min(lowest, shares[0])
        print(f"| {seeds} | {tasks} | {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    print(
        json.dumps(
            {
                "name": "seed_intervals",
                "ratio": lowest / 0.95,
                "ours": lowest,
                "other": 0.95,
                "unit": "coverage",
                "runs": given.repetitions,
            }
        )
    )


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
        row[:-1] = [low <= 0 <= high for low, high in bounds]
        null = crossed_difference(x.tolist(), y.tolist(), matched=False)
        row[-1] = null.p is not None and null.p < 0.05
    return held.mean(axis=0).tolist()


def pigeonhole(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[float, float]:
    """The percentile interval of Owen's pigeonhole bootstrap: seeds and tasks are drawn again, each by itself."""
    low, high = np.quantile(np.sum((rows @ x) * columns, axis=1), [0.025, 0.975])
    return float(low), float(high)


def null_experiment(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, *, draws: int) -> None:
    """Print how often three seeds of a run are told apart from three of the other, which was trained in the same way; (seeds, tasks) each."""
    means = [float(each.mean(axis=1).std(ddof=1)) for each in (a, b)]
    print(f"{len(a)} seeds, {a.shape[1]} tasks; deviation of the seeds' means {means[0]:.3f} and {means[1]:.3f}")
    wins = {"the same three seeds, paired": np.zeros(draws), "three other seeds": np.zeros(draws)}
    drawn = np.array([rng.choice(len(a), 6, replace=False) for _ in range(draws)])
    for place, seeds in enumerate(drawn):
        here, there = seeds[:3], seeds[3:]
        swapped = rng.integers(2, size=(3, 1)) == 1  # which of the two runs a seed's is called is chance, too
        x, y = np.where(swapped, b[here], a[here]), np.where(swapped, a[here], b[here])
        for name, other, matched in zip(wins, (y, a[there]), (True, False), strict=True):
            p = crossed_difference(x.tolist(), other.tolist(), matched=matched).p
            wins[name][place] = p is not None and p < 0.05
    used = {name: drawn[:, : 3 if "paired" in name else 6] for name in wins}
    for name, each in wins.items():
        error = _jackknife(each, used[name], len(a))
        print(
            f"{name}: {100 * each.mean():.1f} % of {draws} draws claim a difference, standard error {100 * error:.1f} %"
        )


def _jackknife(values: np.ndarray, drawn: np.ndarray, seeds: int) -> float:
    """The standard error of the mean over draws that share seeds: each seed is left out in turn."""
    left_out = np.array([values[(drawn != seed).all(axis=1)].mean() for seed in range(seeds)])
    return float(np.sqrt((seeds - 1) / seeds * np.sum((left_out - left_out.mean()) ** 2)))


def _scores(run: Path) -> np.ndarray:
    """(seeds, tasks) rewards of a run's GRPO policy on its first condition."""
    rows: list[list[float]] = []
    for folder in sorted(run.glob("seed-*"), key=lambda each: int(each.name.removeprefix("seed-"))):
        episodes = [
            each for each in read_episodes(folder / "eval" / "episodes.jsonl.gz").episodes if each.policy == "grpo"
        ]
        first = episodes[0].task.condition
        rewards = [each.reward.value for each in episodes if each.reward and each.task.condition == first]
        rows.append([value for value in rewards if value is not None])
    return np.array(rows)


if __name__ == "__main__":
    main()
