"""Learning rate and size of a step on a published model: the same number of sampled answers, split into steps of three sizes, at four rates.

    python benchmarks/published_rates.py --model FILE.gguf --out runs/rates [--seeds 1] [--page docs/log/rates.md]

Each cell is ``gradus run examples/published/sums.toml``, all weights trained, 768 answers. What is there already is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import gradus

ANSWERS = 768
RATES = (3e-6, 1e-5, 3e-5, 1e-4)
GROUPS = (2, 4, 8)  # of eight answers
RECIPE = Path(__file__).parent.parent / "examples" / "published" / "sums.toml"
POLICIES = {"sampled": "grpo", "greedy": "grpo-greedy"}


def cell(model: str, groups: int, rate: float, seed: int, out: Path) -> dict[str, Any]:
    """One run: its size of a step, rate and seed, and the held-out reward of the trained model."""
    settings: Mapping[str, Any] = {
        "model.path": model,
        "audit.enabled": False,
        "grpo.groups": groups,
        "grpo.max_steps": ANSWERS // (8 * groups),
        "grpo.lr": rate,
        "grpo.validation_every": ANSWERS // (8 * groups),
        "grpo.on_alert": "warn",
        "eval.policies": list(POLICIES.values()),
        "eval.pairs": [],
    }
    run = gradus.run(RECIPE, out=out / f"{groups * 8}-{rate:g}-{seed}", seed=seed, settings=settings, anyway=True)
    rewards = {each: run.results["conditions"]["held-out"]["policies"][name] for each, name in POLICIES.items()}
    return {"answers": groups * 8, "rate": rate, "seed": seed, **{k: v["reward"]["mean"] for k, v in rewards.items()}}


def page(cells: list[dict[str, Any]]) -> str:
    """The cells as a table: a row a rate, a column a size of step, sampled / greedy, the mean of the seeds."""
    sizes = [8 * each for each in GROUPS]
    lines = [
        "| rate | " + " | ".join(f"{each} answers a step" for each in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for rate in RATES:
        texts = []
        for size in sizes:
            found = [each for each in cells if each["rate"] == rate and each["answers"] == size]
            texts.append(" / ".join(f"{mean(each[kind] for each in found):.2f}" for kind in POLICIES))
        lines.append(f"| {rate:g} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    cells = [
        cell(given.model, groups, rate, seed, given.out)
        for seed in range(given.seeds)
        for groups in (4, 8, 2)
        for rate in (1e-5, 3e-5, 3e-6, 1e-4)
    ]
    print(page(cells))
    if given.page:
        given.page.write_text(page(cells), encoding="utf-8")
    best = max(cells, key=lambda each: each["greedy"])
    print(json.dumps({"name": "published_rates", "ratio": None, "best": best, "unit": "reward", "cells": cells}))


if __name__ == "__main__":
    main()
