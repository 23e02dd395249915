"""Tasks by difficulty against a shuffle: what the same run reaches on held-out tasks with the same and with fewer sampled tokens.

    python benchmarks/difficulty.py --out runs/difficulty [--sets shop ...] [--seeds 3] [--model FILE.gguf] [--page FILE.md]

A set is a finite pool of tasks. For each set and seed one student is warm-started, then GRPO runs twice from it: tasks shuffled, and by
difficulty. Held-out reward is validated every few steps. ``tokens``: the share of the shuffled run's sampled tokens after which the other
run first reaches the shuffled run's best validation reward; none if it never does. What is there already is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ablations import copy_stages

import gradus

PUBLISHED = Path(__file__).parent.parent / "examples" / "published"
ORDERS = ("shuffled", "difficulty")
COMMON = {
    "audit.enabled": False,
    "grpo.tasks": 128,  # half of them validate, so that a task trained on comes back often enough to be known
    "grpo.validation_every": 4,
    "grpo.validation_tasks": 64,
    "grpo.best_by": "sampled",
    "eval.episodes": 100,
    "eval.policies": ["sft", "grpo"],
    "eval.pairs": ["grpo-sft"],
}
SETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "arithmetic": ("arithmetic", {"grpo.max_steps": 40}),
    "gcd": ("reasoning-gym:gcd", {"grpo.max_steps": 40}),
    "spell_backward": ("reasoning-gym:spell_backward?min_word_len=3&max_word_len=4", {"grpo.max_steps": 40}),
    "shop": ("shop", {"grpo.max_steps": 24}),
    "sums": (str(PUBLISHED / "sums.toml"), {"grpo.max_steps": 24, "eval.policies": ["grpo"], "eval.pairs": []}),
}


def train_both(name: str, seed: int, out: Path, model: str | None) -> dict[str, Any]:
    """The two runs of a set and a seed; the second begins with the first one's student."""
    source, changes = SETS[name]
    if name == "sums":  # the published model, as it is
        changes = {**changes, "model.path": model}
    runs: dict[str, Any] = {}
    for order in ORDERS:
        folder = out / name / f"seed-{seed}" / order
        first = folder.parent / ORDERS[0]
        if order != ORDERS[0] and not folder.exists():
            copy_stages(first, folder, ["model"] if name == "sums" else ["model", "teach", "sft"])
        settings = {**COMMON, **changes, "grpo.task_order": order}
        runs[order] = gradus.run(source, out=folder, seed=seed, settings=settings)
    curves = {order: curve(run) for order, run in runs.items()}
    return {
        "set": name,
        "seed": seed,
        **compared(curves),
        "zero": {order: zero_share(run) for order, run in runs.items()},
    }


def curve(run: Any) -> list[tuple[float, float]]:
    """Sampled tokens so far and validation reward, one pair a validation of sampled answers."""
    tokens: dict[int, float] = {0: 0.0}
    for record in run.metrics("step"):
        tokens[record["step"]] = tokens[record["step"] - 1] + record["tokens"]
    checks = [each for each in run.metrics("validation") if each["decoding"] == "sampled"]
    return [(tokens[each["step"]], each["reward_mean"]) for each in checks if each["step"] in tokens]


def compared(curves: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """The best of each run, and the share of tokens after which difficulty has the shuffled run's best."""
    best = {order: max(reward for _, reward in points) for order, points in curves.items()}
    reached = {
        order: next((tokens for tokens, reward in points if reward >= best["shuffled"]), None)
        for order, points in curves.items()
    }
    share = None if reached["difficulty"] is None else reached["difficulty"] / (reached["shuffled"] or 1)
    return {"best": best, "tokens": share}


def zero_share(run: Any) -> float:
    """Share of the groups in which all members got the same reward."""
    return mean(each["zero_variance_groups"] for each in run.metrics("step"))


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table."""
    lines = [
        "| set | seed | best, shuffled | best, by difficulty | tokens to the shuffled best | equal groups, shuffled | by difficulty |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "not reached" if row["tokens"] is None else f"{row['tokens']:.0%}"
        best, zero = row["best"], row["zero"]
        lines.append(
            f"| {row['set']} | {row['seed']} | {best['shuffled']:.3f} | {best['difficulty']:.3f} | {share} | "
            f"{zero['shuffled']:.0%} | {zero['difficulty']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/difficulty"))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", help="SmolLM2-135M-Instruct, which the set sums needs")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows = [train_both(name, seed, given.out, given.model) for name in given.sets for seed in range(given.seeds)]
    print(page(rows))
    if given.page:
        given.page.write_text(page(rows), encoding="utf-8")
    reached = [row["tokens"] for row in rows]
    ratio = None if None in reached else mean(reached)
    print(
        json.dumps(
            {"name": "difficulty", "ratio": ratio, "ours": None, "other": None, "unit": "tokens", "runs": len(rows)}
        )
    )


if __name__ == "__main__":
    main()
