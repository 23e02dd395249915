"""How often 95 % intervals of a mean hold the truth: Student's t, the BCa bootstrap, and the studentized bootstrap.

Rewards of five shapes, and differences of two such rewards, at 8 to 200 episodes. Prints a table, and one JSON line last.

    python benchmarks/interval_coverage.py --repetitions 2000
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable

import numpy as np
from scipy import stats

SIZES = (8, 20, 50, 200)
Draw = Callable[[np.random.Generator, int, int], np.ndarray]  # (rng, repetitions, n) -> (repetitions, n)


def _sparse(rng: np.random.Generator, repetitions: int, n: int) -> np.ndarray:
    return (rng.random((repetitions, n)) < 0.1) * rng.uniform(0.5, 1.5, (repetitions, n))


SHAPES: dict[str, tuple[Draw, float]] = {  # what is drawn, and its true mean
    "normal": (lambda rng, r, n: rng.normal(0.0, 1.0, (r, n)), 0.0),
    "uniform": (lambda rng, r, n: rng.uniform(0.0, 1.0, (r, n)), 0.5),
    "lognormal": (lambda rng, r, n: rng.lognormal(0.0, 1.0, (r, n)), float(np.exp(0.5))),
    "one in ten earns": (_sparse, 0.1),
    "mostly 1": (lambda rng, r, n: 1.0 - _sparse(rng, r, n), 0.9),
    "difference of lognormals": (lambda rng, r, n: rng.lognormal(0, 1, (r, n)) - rng.lognormal(0, 1, (r, n)), 0.0),
    "difference of sparse ones": (lambda rng, r, n: _sparse(rng, r, n) - _sparse(rng, r, n), 0.0),
}


def student(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of Student's t for every row of ``x`` (repetitions, n)."""
    half = stats.t.ppf(0.975, x.shape[1] - 1) * x.std(axis=1, ddof=1) / np.sqrt(x.shape[1])
    return x.mean(axis=1) - half, x.mean(axis=1) + half


def bca(x: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """BCa bounds of every row by ``scipy.stats.bootstrap``."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sample of one value has no BCa interval; it counts as a miss
        found = stats.bootstrap((x,), np.mean, axis=1, method="BCa", n_resamples=1000, batch=100, rng=rng)
    return found.confidence_interval.low, found.confidence_interval.high


def studentized(x: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the studentized bootstrap for every row: quantiles of (resample's mean - mean) / resample's error."""
    n, mean, error = x.shape[1], x.mean(axis=1), x.std(axis=1, ddof=1) / np.sqrt(x.shape[1])
    drawn = np.empty((1000, len(x)))
    for index in range(1000):
        again = np.take_along_axis(x, rng.integers(0, n, x.shape), axis=1)
        spread = again.std(axis=1, ddof=1) / np.sqrt(n)
        with np.errstate(all="ignore"):
            drawn[index] = (again.mean(axis=1) - mean) / spread
    drawn[~np.isfinite(drawn)] = np.nan
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        upper, lower = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    return mean - lower * error, mean - upper * error


def coverage(bounds: tuple[np.ndarray, np.ndarray], truth: float) -> float:
    """The share of rows whose interval holds the truth; an undefined bound counts as a miss."""
    return float(np.mean((bounds[0] <= truth) & (truth <= bounds[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    rows: list[dict[str, object]] = []
    print("| rewards | episodes | Student's t | BCa | studentized bootstrap |\n|---|---|---|---|---|")
    for name, (draw, truth) in SHAPES.items():
        for n in SIZES:
            x = draw(rng, given.repetitions, n)
            shares = [coverage(each, truth) for each in (student(x), bca(x, rng), studentized(x, rng))]
            rows.append({"shape": name, "n": n, "t": shares[0], "bca": shares[1], "studentized": shares[2]})
            print(f"| {name} | {n} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)
    at_eight = [row for row in rows if row["n"] == SIZES[0]]
    ours, other = (float(np.mean([row[key] for row in at_eight])) for key in ("t", "bca"))
    line = {
        "name": "interval_coverage",
        "ratio": ours / other,
        "ours": ours,
        "other": other,
        "unit": "coverage at 8 episodes",
    }
    print(json.dumps({**line, "runs": given.repetitions}))


if __name__ == "__main__":
    main()
