"""One student, four arithmetics: GRPO on sums in float32, in bfloat16, under autocast, and with adapters.

    python benchmarks/precision_learning.py --out runs/precision

All ways begin with the same SFT student and see the same tasks. The sums are held out and the same for all; the last column is the paired
difference to float32 with its 95 % interval. `trainer` is float32 with the trainer's own old log-probs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gradus import api
from gradus.core.metrics import read_metrics
from gradus.pipeline.recipe_files import load_recipe
from gradus.pipeline.run import run_recipe

SETTINGS = ["grpo.lr=7e-4", "grpo.schedule=cosine", "grpo.warmup=0.03", "grpo.min_lr_ratio=0.05", "grpo.groups=32", "grpo.group_size=8",
            "grpo.dynamic_sampling=1", "grpo.token_budget=16384", "grpo.sampling.max_new_tokens=40", "grpo.validation_every=0",
            "stage=[]", "grpo.lora="]  # fmt: skip
WAYS = {
    "float32": [],
    "trainer": ["grpo.old_logprobs=trainer"],
    "bfloat16": ["grpo.dtype=bfloat16"],
    "autocast": ["grpo.autocast=true"],
    "adapters": ["grpo.lora={rank=32,alpha=64}", "grpo.lr=2e-3"],
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("runs/precision"))
    arguments.add_argument("--steps", type=int, default=160)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--episodes", type=int, default=400)
    arguments.add_argument("--ways", default=",".join(WAYS), help="which of them, float32 among them")
    given = arguments.parse_args()
    ways = {name: WAYS[name] for name in given.ways.split(",")}
    student = given.out / "student" / "sft" / "best"
    if not student.exists():  # the recipe's own student; its GRPO is as short as it gets
        short = ["grpo.max_steps=1", "stage=[]", "eval.episodes=2", "audit.enabled=false"]
        run_recipe(load_recipe("arithmetic", changes=short), out=given.out / "student")
    settings = [*SETTINGS, f"grpo.max_steps={given.steps}", f"grpo.threads={given.threads}"]
    models = {"student": student}
    for way, changes in ways.items():
        folder = given.out / way
        resume = (folder / "config.json").exists()
        models[way] = api.grpo("arithmetic", student, out=folder, settings=[*settings, *changes], resume=resume)
    pairs = [(way, "float32") for way in ways if way != "float32"] + [("float32", "student")]
    scores = api.evaluate(
        {name: str(folder) for name, folder in models.items()},
        env="arithmetic",
        conditions=["held-out"],
        episodes=given.episodes,
        pairs=pairs,
        temperature=1.0,
        max_new_tokens=40,
    )
    show(given.out, scores.to_json()["conditions"]["held-out"])


def show(out: Path, condition: dict) -> None:
    table = Table("way", "right", "float32 and it differ by", "largest logp_diff", box=None)
    lines = {}
    for name, figures in condition["policies"].items():
        pair = condition["pairs"].get(f"{name} - float32", {}).get("true_reward")
        right = figures["true_reward"]
        steps = (
            [record for record in read_metrics(out / name) if record.get("kind") == "step"] if name != "student" else []
        )
        worst = max((record["logp_diff_max"] for record in steps), default=None)
        table.add_row(name, spread(right), spread(pair) if pair else "", f"{worst:.1e}" if worst is not None else "")
        lines[name] = {"right": right, "difference": pair, "logp_diff_max": worst}
    Console().print(table)
    print(json.dumps({"name": "precision_learning", **lines}))


def spread(mean: dict) -> str:
    return f"{mean['mean']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


if __name__ == "__main__":
    main()
