"""A published model taught token by token: by itself after GRPO, and by itself under its best prompt (small sums).

    python benchmarks/published_distill.py --model FILE.gguf --grpo runs/sums-1 --out runs/taught [--seeds 3]

``grpo``: a finished run of examples/published/sums.toml, which is the teacher of a fresh student that rolls out all answers itself. The best
prompt shows four examples; the student learns its answers without seeing them. Every student has the run's own plain prompt.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradus

PUBLISHED = Path(__file__).parent.parent / "examples" / "published"
ENVIRONMENT = f"{PUBLISHED / 'sums.py'}:spec"
COMMON = {
    "distill.lr": 1e-5,
    "distill.batch_size": 16,
    "sft.schedule": "constant",
    "sft.checkpoint_every": 100,
    "sft.autocast": "auto",
}
OWN = {"distill.on_policy": 1.0}
STUDENTS: Mapping[str, tuple[str | None, int, Mapping[str, Any]]] = {  # teacher, steps, settings; no teacher: the run
    "GRPO's model, forward": (None, 12, {**OWN, "distill.divergence": "forward"}),
    "GRPO's model, reverse": (None, 12, {**OWN, "distill.divergence": "reverse"}),
    "its best-prompted self": ("prompted-greedy", 24, {"distill.on_policy": 0.0}),
}


def taught(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Teaches one student and evaluates it on the held-out sums."""
    teacher, steps, settings = STUDENTS[name]
    out = given.out / f"{name.replace(' ', '_')}-{seed}"
    stored = out / "row.json"
    if stored.exists():
        return json.loads(stored.read_text())
    began = time.process_time()
    student = gradus.distill(
        given.model,
        teacher or given.grpo,
        ENVIRONMENT,
        steps=steps,
        out=out,
        recipe=PUBLISHED / "sums.toml",
        seed=seed,
        settings={**COMMON, **settings},
    )
    seconds = time.process_time() - began
    row = {"student": name, "seed": seed, "steps": steps, "cpu_seconds": round(seconds)}
    for decoding, sampling in (("sampled", {}), ("greedy", {"temperature": 0.0})):
        scores = gradus.evaluate([str(student)], env=ENVIRONMENT, conditions=["held-out"], seed=seed, **sampling)
        (figures,) = scores.to_json()["conditions"]["held-out"]["policies"].values()
        row[decoding] = figures["reward"]["mean"]
    stored.write_text(json.dumps(row))
    return row


def main() -> None:
    """Teach what is missing and print a line each; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--grpo", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/taught"))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    for seed in range(given.seeds):
        for name in STUDENTS:
            rows.append(taught(name, seed, given))
            print(rows[-1], flush=True)
    print(json.dumps({"name": "published_distill", "ratio": None, "unit": "reward", "rows": rows}))


if __name__ == "__main__":
    main()
