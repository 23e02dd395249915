"""One student, several ways: GRPO on sums in float32, in bfloat16, under autocast, with adapters, and with a server that samples.

    python benchmarks/precision_learning.py --out runs/precision

All ways begin with the same SFT student and see the same tasks. The sums are held out and the same for all; the last column is the paired
difference to float32 with its 95 % interval. `http` lets
`gradus serve` sample in a process of its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gradus import commands
from gradus.core.metrics import read_metrics
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.stages.runner import run_stages

SETTINGS = ["grpo.lr=7e-4", "grpo.schedule=cosine", "grpo.warmup=0.03", "grpo.min_lr_ratio=0.05", "grpo.groups=32", "grpo.group_size=8",
            "grpo.dynamic_sampling=1", "grpo.token_budget=16384", "grpo.sampling.max_new_tokens=40", "grpo.validation_every=0",
            "stage=[]", "grpo.lora="]  # fmt: skip
WAYS = {
    "float32": [],
    "bfloat16": ["grpo.dtype=bfloat16"],
    "autocast": ["grpo.autocast=true"],
    "adapters": ["grpo.lora={rank=32,alpha=64}", "grpo.lr=2e-3"],
    "http": ["grpo.correction=truncate", "grpo.sampler=http"],
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("runs/precision"))
    arguments.add_argument("--steps", type=int, default=160)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--episodes", type=int, default=400)
    arguments.add_argument("--seed", type=int, default=0, help="of GRPO")
    arguments.add_argument("--ways", default=",".join(WAYS), help="which of them, float32 among them")
    given = arguments.parse_args()
    ways = {name: WAYS[name] for name in given.ways.split(",")}
    student = given.out / "student" / "sft" / "best"
    if not student.exists():  # the recipe's own student; its GRPO is as short as it gets
        short = ["grpo.max_steps=1", "stage=[]", "eval.episodes=2", "audit.enabled=false"]
        run_stages(resolve(load_recipe("arithmetic", changes=short)), given.out / "student")
    settings = [*SETTINGS, f"grpo.max_steps={given.steps}", f"grpo.threads={given.threads}", f"grpo.seed={given.seed}"]
    models = {"student": student}
    for way, changes in ways.items():
        folder = given.out / way
        resume = (folder / "config.json").exists()
        with serving(student, given.out) if way.endswith("http") else nullcontext([]) as address:
            wanted = [*settings, *changes, *address]
            models[way] = commands.grpo("arithmetic", student, out=folder, settings=wanted, resume=resume)
    pairs = [(way, "float32") for way in ways if way != "float32"] + [("float32", "student")]
    scores = commands.evaluate(
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
    columns = ("seconds a step", "largest weight")
    table = Table("way", "right", "float32 and it differ by", "largest logp_diff", *columns, box=None)
    lines = {}
    for name, figures in condition["policies"].items():
        pair = condition["pairs"].get(f"{name} - float32", {}).get("true_reward")
        right = figures["true_reward"]
        steps = (
            [record for record in read_metrics(out / name) if record.get("kind") == "step"] if name != "student" else []
        )
        worst = max((record["logp_diff_max"] for record in steps), default=None)
        seconds = mean([record["seconds"].get("total") for record in steps])
        weight = max((record.get("mismatch_ratio_max") or 1.0 for record in steps), default=None)
        cells = ["" if each is None else f"{each:.2f}" for each in (seconds, weight)]
        gap = f"{worst:.1e}" if worst is not None else ""
        table.add_row(name, spread(right), spread(pair) if pair else "", gap, *cells)
        lines[name] = {
            "right": right,
            "difference": pair,
            "logp_diff_max": worst,
            "seconds": seconds,
            "weight_max": weight,
        }
    Console().print(table)
    print(json.dumps({"name": "precision_learning", **lines}))


@contextmanager
def serving(model: Path, weights: Path) -> Iterator[list[str]]:
    """`gradus serve` in a process of its own, which takes weights from below a folder; yields the settings that name it."""
    os.environ["VLLM_API_KEY"] = secrets.token_hex(8)
    command = [sys.executable, "-m", "gradus", "serve", str(model), "--port", "0", "--weights", str(weights)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = re.search(r"http://\S+/v1", process.stderr.readline())
        assert address is not None, process.stderr.read()
        yield [f"grpo.sampler_url={address[0]}"]
    finally:
        process.terminate()
        process.wait()


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def spread(mean: dict) -> str:
    return f"{mean['mean']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"


if __name__ == "__main__":
    main()
