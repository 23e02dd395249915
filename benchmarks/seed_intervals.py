"""How often intervals over training seeds and tasks hold the truth, beside other ways to make them; and a null experiment.

    python benchmarks/seed_intervals.py [--repetitions 2000] [--missing 0.25] [--null RUN [RUN]]

Scores are drawn as mean + seed + task + noise with a mean of 0. ``--missing``: the share of them that is left out, by chance. ``--null`` is a null experiment with real training instead: three seeds
of a `gradus run ... --seeds N` against three others of the same run, so each claimed difference is false. With a second folder that
differs in a setting that does nothing, also against the same three seeds of that one; `benchmarks/ablations.py null --seeds N` makes two such.
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
    parser.add_argument("--null", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--draws", type=int, default=4000, help="Draws of seeds in a null experiment, at most.")
    parser.add_argument("--missing", type=float, default=0.0)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    if given.null:
        for run in given.null:
            scores = _scores(run)
            splits = _splits(rng, len(scores), given.draws)
            report(
                f"{run}: three seeds against three others",
                splits,
                [_claims(scores[s[:3]], scores[s[3:]]) for s in splits],
            )
        if len(given.null) == 2:
            paired_null(rng, *(_scores(run) for run in given.null), draws=given.draws)
        return
    if given.missing:
        print("| seeds | tasks | effect of seeds | ours | false wins | paired over seeds |")
        print("|---" * 6 + "|")
        for seeds, tasks, (name, mix) in itertools.product((3, 5), (50, 200), MIXES.items()):
            shares = coverage_with_gaps(rng, seeds, tasks, mix, given.repetitions, given.missing)
            print(f"| {seeds} | {tasks} | {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
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


def coverage_with_gaps(
    rng: np.random.Generator, seeds: int, tasks: int, mix: tuple[float, float, float], repetitions: int, missing: float
) -> list[float]:
    """The share of our intervals that hold 0, and of false wins over other seeds and over the same ones, if a share of values is missing."""
    held = np.zeros((repetitions, 3))
    for row in held:
        difficulty = mix[1] * rng.standard_normal(tasks)
        x, y = (table(rng, seeds, difficulty, mix) for _ in range(2))
        x, y = (np.where(rng.random(each.shape) < missing, np.nan, each).tolist() for each in (x, y))
        ours = crossed_interval(x)
        nulls = [crossed_difference(x, y, matched=matched).p for matched in (False, True)]
        row[:] = [ours.low <= 0 <= ours.high, *(p is not None and p < 0.05 for p in nulls)]
    return held.mean(axis=0).tolist()


def pigeonhole(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[float, float]:
    """The percentile interval of Owen's pigeonhole bootstrap: seeds and tasks are drawn again, each by itself."""
    low, high = np.quantile(np.sum((rows @ x) * columns, axis=1), [0.025, 0.975])
    return float(low), float(high)


def paired_null(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, *, draws: int) -> None:
    """Three seeds of one run against the same seeds of the other, (seeds, tasks) each; which of the two a seed's is called is chance, too."""
    drawn = np.array([rng.choice(len(a), 3, replace=False) for _ in range(draws)])
    claims: list[bool] = []
    for seeds in drawn:
        swapped = rng.integers(2, size=(3, 1)) == 1
        x, y = np.where(swapped, b[seeds], a[seeds]), np.where(swapped, a[seeds], b[seeds])
        claims.append(_claims(x, y, matched=True))
    report("the same three seeds of both, paired", drawn, claims)


def report(name: str, drawn: np.ndarray, claims: list[bool]) -> None:
    """Print the share of draws that claim a difference, with the jackknife's standard error: draws share seeds, so each is left out in turn."""
    values, seeds = np.array(claims, dtype=float), int(drawn.max()) + 1
    left_out = np.array([values[(drawn != seed).all(axis=1)].mean() for seed in range(seeds)])
    error = np.sqrt((seeds - 1) / seeds * np.sum((left_out - left_out.mean()) ** 2))
    print(
        f"{name}: {100 * values.mean():.1f} % of {len(drawn)} draws of {seeds} seeds claim a difference, standard error {100 * error:.1f} %"
    )


def _splits(rng: np.random.Generator, seeds: int, draws: int) -> np.ndarray:
    """Three seeds and three others: all ways if there are few, else so many draws."""
    triples = list(itertools.combinations(range(seeds), 3))
    pairs = ((a, b) for a, b in itertools.combinations(triples, 2) if not set(a) & set(b))
    every = np.array([a + b for a, b in itertools.islice(pairs, draws + 1)])
    return every if len(every) <= draws else np.array([rng.choice(seeds, 6, replace=False) for _ in range(draws)])


def _claims(a: np.ndarray, b: np.ndarray, *, matched: bool = False) -> bool:
    p = crossed_difference(a.tolist(), b.tolist(), matched=matched).p
    return p is not None and p < 0.05


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
