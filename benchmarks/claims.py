"""How often a claim is wrong, an interval holds the truth, and tasks are too few, over shapes of differences.

    python benchmarks/claims.py [--repetitions 4000] [--drawn SEED ...]

Two policies whose means are equal, or differ by 2.8 standard errors at all tasks, looked at once and five times. A claim of either side is
counted, and the more frequent one is shown: a disaster of one policy is a rare gain of the other. ``--drawn``: shapes that a generator draws
from these seeds, instead. A cell in which fewer than one comparison in twenty ends in a verdict is judged by the errors of all its
comparisons, as what passed was selected. Prints a row for each shape, the worst cells, and one JSON line last.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from _shared import print_line

from gradus.stats import decide, level_of, look_sizes, paired_difference

SIZES = (8, 12, 20, 40, 60, 100, 200)  # independent units: tasks, or clusters of them
EFFECTS = (0.0, 2.8)  # in standard errors; of normal differences one look proves the second in 80 % of cases
COVERAGE, FALSE_BETTER, RARE = 0.93, 0.035, 0.05
Draw = Callable[[np.random.Generator, int], np.ndarray]

DIFFERENCES: dict[str, Draw] = {  # a policy's rewards less those of one that always earns their mean
    "normal": lambda rng, n: rng.normal(0.0, 1.0, n),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
    "disaster 5 %": lambda rng, n: np.where(rng.random(n) < 0.05, -1.0, 0.05 / 0.95),
    "disaster 10 %": lambda rng, n: np.where(rng.random(n) < 0.1, -1.0, 0.1 / 0.9),
    "sparse 5 %": lambda rng, n: (rng.random(n) < 0.05) * rng.uniform(0.5, 1.5, n) - 0.05,
    "sparse 10 %": lambda rng, n: (rng.random(n) < 0.1) * rng.uniform(0.5, 1.5, n) - 0.1,
    "sparse 20 %": lambda rng, n: (rng.random(n) < 0.2) * rng.uniform(0.5, 1.5, n) - 0.2,
    "lognormal 0.5": lambda rng, n: rng.lognormal(0.0, 0.5, n) - np.exp(0.125),
    "lognormal 1": lambda rng, n: rng.lognormal(0.0, 1.0, n) - np.exp(0.5),
    "beta(5, 1/2)": lambda rng, n: rng.beta(5.0, 0.5, n) - 5 / 5.5,
    "clusters": lambda rng, n: rng.normal(0.0, 1.0, n),
    "clusters, lognormal 0.5": lambda rng, n: rng.lognormal(0.0, 0.5, n) - np.exp(0.125),
}
VALUES = {  # both policies draw one of these rewards with these chances, each by itself
    "two values": ((0.0, 2.0), (0.5, 0.5)),
    "two values, rare": ((0.0, 1.0), (0.9, 0.1)),
    "three values": ((0.0, 0.5, 1.0), (0.5, 0.3, 0.2)),
}


def drawn(seed: int) -> Draw:
    """A mixture of one to three kinds of differences, with places, scales and shares from the seed; its mean is 0."""
    rng = np.random.default_rng([seed, 17])
    count = int(rng.integers(1, 4))
    shares, places = rng.dirichlet(np.ones(count)), rng.normal(0.0, 1.0, count)
    scales, powers = rng.lognormal(-0.5, 1.0, count), rng.lognormal(0.0, 1.0, count)
    kinds = rng.choice(["constant", "normal", "gamma", "negative gamma"], count)
    signs = np.array([{"gamma": 1.0, "negative gamma": -1.0}.get(kind, 0.0) for kind in kinds])
    print(f"drawn {seed}: " + ", ".join(f"{share:.0%} {kind}" for share, kind in zip(shares, kinds, strict=True)))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        part = rng.choice(count, n, p=shares)
        noise = (kinds == "normal")[part] * rng.normal(0.0, scales[part])
        skewed = signs[part] * rng.gamma(powers[part], scales[part])
        return places[part] + noise + skewed - float(shares @ (places + signs * powers * scales))

    return draw


def rewards(shape: str, draw: Draw | None, rng: np.random.Generator, n: int, effect: float):
    """Rewards of both policies on ``n`` units, the unit of each task if units are clusters, and the true difference."""
    if draw is None:
        numbers, chances = VALUES[shape]
        a, b = (rng.choice(numbers, n, p=chances) for _ in range(2))
        share = min(1.0, effect / (chances[0] * numbers[-1]))  # of the lowest rewards, which become the highest
        moved = (a == numbers[0]) & (rng.random(n) < share)
        return np.where(moved, numbers[-1], a), b, None, share * chances[0] * numbers[-1]
    x = draw(rng, n) + effect
    if "clusters" not in shape:
        return x, np.zeros(n), None, effect
    labels = np.repeat(np.arange(n), rng.integers(1, 7, n))
    return x[labels] + rng.normal(0.0, 0.5, len(labels)), np.zeros(len(labels)), labels, effect


def judged(a: np.ndarray, b: np.ndarray, labels: np.ndarray | None, tasks: int, looks: int):
    """The verdict on what was seen of ``tasks``, whether it is the last look, and the interval."""
    level = level_of(looks=looks)
    paired = paired_difference(a.tolist(), b.tolist(), None if labels is None else labels.tolist(), level=level)
    return paired.decision, decide(paired, tasks) != "open", paired.low, paired.high


def cell(
    shape: str, draw: Draw | None, n: int, effect: float, looks: int, repetitions: int, seed: int
) -> dict[str, float]:
    """Shares of the comparisons of one cell."""
    names = [*DIFFERENCES, *VALUES]
    rng = np.random.default_rng([seed, names.index(shape) if shape in names else 99, n, int(10 * effect)])
    spread = np.subtract(*rewards(shape, draw, np.random.default_rng(seed), 100_000, 0.0)[:2]).std()
    counts: dict[str, float] = dict.fromkeys(("better", "worse", "undecided", "too few", "missed", "seen"), 0.0)
    for _ in range(repetitions):
        a, b, labels, truth = rewards(shape, draw, rng, n, effect * spread / np.sqrt(n))
        size, verdict, low, high = n, "too few", None, None
        for size in look_sizes(n) if looks > 1 else [n]:
            cut = size if labels is None else int(np.searchsorted(labels, size))
            verdict, last, low, high = judged(a[:cut], b[:cut], None if labels is None else labels[:cut], len(a), looks)
            if last:
                break
        counts[verdict] += 1 / repetitions
        counts["seen"] += size / n / repetitions
        held = (low is None or low <= truth + 1e-9) and (high is None or high >= truth - 1e-9)
        counts["missed"] += (verdict != "too few" and not held) / repetitions
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drawn", type=int, nargs="*", default=())
    options = parser.parse_args()
    shapes = {**DIFFERENCES, **dict.fromkeys(VALUES)}
    if options.drawn:
        shapes = {f"drawn {seed}": drawn(seed) for seed in options.drawn}
    print(
        "| shape | looks | least coverage | most false claims | too few | cells with verdicts | proven | tasks seen |"
    )
    print("|---" * 8 + "|")
    under, total, least = [], 0, 1.0
    for (shape, draw), looks in itertools.product(shapes.items(), (1, 5)):
        row: list[tuple[float, float, float, float, float]] = []
        for n, effect in itertools.product(SIZES, EFFECTS):
            counts = cell(shape, draw, n, effect, looks, options.repetitions, options.seed)
            verdicts = 1 - counts["too few"]
            given = verdicts if verdicts >= RARE else 1.0
            coverage = 1 - counts["missed"] / given
            wrong = 0.0 if effect else max(counts["better"], counts["worse"]) / given
            row.append((coverage, wrong, counts["too few"], counts["better"] if effect else 0.0, counts["seen"]))
            total += verdicts > 0
            if coverage < COVERAGE or wrong > FALSE_BETTER:
                under.append(
                    f"{shape}, n {n}, effect {effect:g}, looks {looks}: coverage {coverage:.1%}, false {wrong:.1%}, of {verdicts:.1%}"
                )
        coverage, wrong, few, better, seen = np.array(row).T
        least = min(least, coverage.min())
        figures = [coverage.min(), wrong.max(), few.mean(), float((few < 1).mean()), better[1::2].mean(), seen.mean()]
        print(f"| {shape} | {looks} | " + " | ".join(f"{figure:.1%}" for figure in figures) + " |", flush=True)
    print("\n".join([f"{len(under)} of {total} cells below {COVERAGE:.0%} or above {FALSE_BETTER:.1%}:", *under]))
    print_line(
        "claims",
        ratio=least / 0.95,
        ours=least,
        other=0.95,
        unit="least coverage",
        runs=options.repetitions,
        under=len(under),
    )


if __name__ == "__main__":
    main()
