"""Float32 products of linear layers: what Gradus takes on this CPU beside torch's own, in turn.

The shapes are those of small models: a training pass, a prefill and a token of 64 rows; the last ones are a token of few rows of a model
of 500 million parameters. Where Gradus takes torch's own (any CPU but AMD's with 512 bit instructions) the ratio is 1. The last line is JSON.

    python benchmarks/float32_products.py [--runs 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from gradus.policies.local.cpu.float32_linear import prefers_onednn, product

SHAPES = (
    (4096, 192, 768),
    (4096, 768, 192),
    (1280, 192, 192),
    (64, 192, 768),
    (64, 768, 192),
    (64, 192, 32),
    (8, 192, 768),
    (8, 896, 4864),
    (1, 4864, 896),
)
MILLIONS = 200  # multiplications of one measurement, so that each takes some milliseconds


def seconds(work: Callable[[], object], times: int) -> float:
    """Of one call, over several."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = Table("rows x inputs -> outputs", "Gradus, GFLOP/s", "torch, GFLOP/s", "ratio")
    ratios: list[float] = []
    with torch.inference_mode():
        for rows, inner, outer in SHAPES:
            inputs, weight = torch.randn(rows, inner), torch.randn(outer, inner)
            times = max(1, MILLIONS * 10**6 // (rows * inner * outer))
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(given.runs + 1):
                for way, kept in zip((product, F.linear), taken, strict=True):
                    kept.append(seconds(lambda way=way, a=inputs, b=weight: way(a, b), times))
            ours, other = (statistics.median(kept[1:]) for kept in taken)  # the first ones warm up
            work = 2e-9 * rows * inner * outer
            ratios.append(other / ours)
            table.add_row(
                f"{rows} x {inner} -> {outer}", f"{work / ours:.0f}", f"{work / other:.0f}", f"{ratios[-1]:.2f}"
            )
    Console().print("oneDNN in place of MKL:", "yes" if prefers_onednn() else "no", table)
    line = {"name": "float32_products", "ratio": round(statistics.geometric_mean(ratios), 3), "unit": "x, all shapes"}
    print(json.dumps({**line, "runs": given.runs}))


if __name__ == "__main__":
    main()
