"""What `gradus eval --until-decided` saves, and how often its interval holds the truth, beside one look at all tasks.

Differences of six shapes, four numbers of tasks and nine effects. An effect is in standard errors at all tasks: 2.8 is what one look proves
in 80 % of cases. ``wider`` is the looks with 40 % more tasks at most, which brings back the power that stopping early costs.
Prints a table by effect, the worst cells, and one JSON line last.

    python benchmarks/until_decided.py --repetitions 2000
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from _shared import print_line

from gradus.stats import LOOK_LEVEL, decide, look_sizes, paired_difference

SIZES = (30, 60, 120, 240)
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.8, 4.0, 6.0, 8.0)
WIDER = 1.4
WRONG = {"one and zero": 0.5, "few differ": 0.6 * 0.1 + 0.4 * 0.9}  # shares of the first policy's answers
DIFFERENCES = ("normal", "uniform", "lognormal", "sparse", "one and zero", "few differ")


@dataclass
class Cell:
    """Counts of one cell: repetitions in which the interval held the truth, a difference was proven, and tasks that were seen."""

    held: int = 0
    proven: int = 0
    tasks: int = 0


def differences(shape: str, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards of two policies on ``n`` tasks whose mean difference is 0."""
    if shape == "one and zero":
        return (rng.random(n) < 0.5).astype(float), (rng.random(n) < 0.5).astype(float)
    if shape == "few differ":
        same = (rng.random(n) < 0.6).astype(float)
        return np.where(rng.random(n) < 0.1, 1 - same, same), np.where(rng.random(n) < 0.1, 1 - same, same)
    if shape == "uniform":
        return rng.uniform(0.0, 1.0, n) - 0.5, np.zeros(n)
    if shape == "lognormal":
        return rng.lognormal(0.0, 1.0, n), rng.lognormal(0.0, 1.0, n)
    if shape == "sparse":
        return _sparse(rng, n), _sparse(rng, n)
    return rng.normal(0.0, 1.0, n), np.zeros(n)


def _sparse(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rewards of which one in ten is not 0."""
    return (rng.random(n) < 0.1) * rng.uniform(0.5, 1.5, n)


def shifted(rng: np.random.Generator, a: np.ndarray, size: float, wrong: float) -> tuple[np.ndarray, float]:
    """``a`` with the effect, and the difference that is then true: a shift, or if a share ``wrong`` is 0 and the rest 1, some of it made right."""
    if wrong:
        share = min(1.0, size / wrong)
        return np.where((a == 0) & (rng.random(len(a)) < share), 1.0, a), share * wrong
    return a + size, size


def simulate(shape: str, n: int, effect: float, repetitions: int, seed: int) -> dict[str, Cell]:
    """One look at ``n`` tasks, looks at ``n`` at most, and looks at 40 % more at most."""
    rng = np.random.default_rng([seed, DIFFERENCES.index(shape), n, EFFECTS.index(effect)])
    x, y = differences(shape, np.random.default_rng(seed), 200_000)
    spread = float((x - y).std())
    cells = {"one look": Cell(), "looks": Cell(), "wider": Cell()}
    most = round(WIDER * n)
    for _ in range(repetitions):
        a, b = differences(shape, rng, most)
        a, truth = shifted(rng, a, effect * spread / np.sqrt(n), WRONG.get(shape, 0.0))
        for name, tasks in (("one look", n), ("looks", n), ("wider", most)):
            paired, seen = paired_difference(a[:n].tolist(), b[:n].tolist()), tasks
            if name != "one look":
                for seen in look_sizes(tasks):
                    paired = paired_difference(a[:seen].tolist(), b[:seen].tolist(), level=LOOK_LEVEL)
                    if decide(paired, tasks) != "open":
                        break
            low = -np.inf if paired.low is None else paired.low
            high = np.inf if paired.high is None else paired.high
            cells[name].held += bool(low <= truth <= high)
            cells[name].proven += not low <= 0 <= high
            cells[name].tasks += seen
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    cells: dict[tuple[str, int, float], dict[str, Cell]] = {}
    for shape in DIFFERENCES:
        for n in SIZES:
            for effect in EFFECTS:
                cells[shape, n, effect] = simulate(shape, n, effect, given.repetitions, given.seed)
        print(f"{shape}: done", flush=True)
    print(
        "\n| effect | proven: one look | looks | wider | tasks of one look's: looks | wider |\n|---|---|---|---|---|---|"
    )

    def mean(kind: str, effect: float, figure: str) -> float:
        of = [(n, cell[kind]) for (_, n, each), cell in cells.items() if each == effect]
        return float(np.mean([getattr(c, figure) / given.repetitions / (n if figure == "tasks" else 1) for n, c in of]))

    for effect in EFFECTS:
        shares = [mean(kind, effect, "proven") for kind in ("one look", "looks", "wider")]
        tasks = [mean(kind, effect, "tasks") for kind in ("looks", "wider")]
        print(f"| {effect:g} | " + " | ".join(f"{share:.1%}" for share in shares + tasks) + " |")
    held = {
        kind: sorted((c[kind].held / given.repetitions, *key) for key, c in cells.items())
        for kind in ("one look", "looks")
    }
    for kind, several in held.items():
        under = sum(share < 0.94 for share, *_ in several)
        print(
            f"{kind}: coverage below 94 % in {under} of {len(several)} cells; the least: {several[0]}, {several[1]}, {several[2]}"
        )
    ours, wider = (float(np.mean([mean(kind, effect, "tasks") for effect in EFFECTS])) for kind in ("looks", "wider"))
    unit = "tasks of one look's"
    print_line("until_decided", ratio=ours, ours=ours, other=1.0, unit=unit, runs=given.repetitions, wider=wider)


if __name__ == "__main__":
    main()
