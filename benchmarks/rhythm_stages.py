"""What short slices of `gradus run rhythm` cost, stage by stage, beside another version of Gradus.

`--against SRC` names the `src` folder of another checkout. Both take the same slices in processes of their own, in turn; CPU seconds of
one thread, medians. What they compute must be equal to the last digit (weights, losses, rewards, stored episodes), or this fails.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

STAGES = ("teach", "sft", "grpo", "eval")
WEEKS, SFT_STEPS, GRPO_STEPS, EVAL_WEEKS = 128, 10, 2, 25


def slices(folder: Path) -> dict[str, dict[str, Any]]:
    """Stage -> CPU seconds and a digest of what came out."""
    import torch

    from gradus.core.metrics import read_metrics
    from gradus.evidence.evaluation import evaluate
    from gradus.policies.local.loading import load_model
    from gradus.policies.local.policy import LocalPolicy
    from gradus.policies.nano.model import make_nano
    from gradus.rollouts import read_episodes
    from gradus.runs.job import resolve
    from gradus.runs.recipe.load import load_recipe
    from gradus.runs.stages.teaching import teach
    from gradus.training.grpo import train_grpo
    from gradus.training.run.options import GrpoOptions, RunOptions
    from gradus.training.sft import train_sft

    torch.set_num_threads(1)
    recipe = load_recipe("rhythm")
    spec, grader = resolve(recipe).environment, resolve(recipe).environment.grader(recipe.grader)
    assert spec.language.vocabulary is not None
    make_nano(folder / "model", spec.language.vocabulary(), recipe.model.nano, seed=0)
    taught = folder / "teach.jsonl"

    def do_teach() -> bytes:
        teach(spec, spec.policy("bayes"), episodes=WEEKS, path=taught, grader=grader)
        return taught.read_bytes()

    def do_sft() -> bytes:
        config = recipe.sft.model_copy(update={"threads": 1, "max_steps": SFT_STEPS, "validation_every": 0})
        train_sft(
            folder / "model", read_episodes(taught).episodes, config, folder / "sft", options=RunOptions(live=False)
        )
        return figures(folder / "sft")

    def do_grpo() -> bytes:
        config = recipe.grpo.model_copy(update={"threads": 1, "max_steps": GRPO_STEPS, "validation_every": 0})
        train_grpo(
            folder / "sft" / "final", spec, config, folder / "grpo", options=GrpoOptions(grader=grader, live=False)
        )
        return figures(folder / "grpo")

    def do_eval() -> bytes:
        loaded = load_model(folder / "grpo" / "final", device="cpu")
        student = LocalPolicy(loaded, recipe.grpo.sampling, name="grpo", grammar=spec.language.grammar)
        policies = {"grpo": student, **{name: spec.policy(name) for name in ("heuristic", "bayes", "clairvoyant")}}
        done = evaluate(spec, policies, conditions=["held-out"], graders=["v3", "v2"], episodes=EVAL_WEEKS)
        return json.dumps(done.to_json(), sort_keys=True).encode()

    def figures(run: Path) -> bytes:
        keys = ("loss", "grad_norm", "reward", "reward_mean", "true_reward", "kl", "entropy")
        records = [{key: each.get(key) for key in keys} for each in read_metrics(run / "metrics.jsonl")]
        return json.dumps(records).encode() + (run / "final" / "model.safetensors").read_bytes()

    def timed(work: Callable[[], bytes]) -> dict[str, Any]:
        began = time.process_time()
        digest = hashlib.sha256(work()).hexdigest()
        return {"seconds": time.process_time() - began, "digest": digest}

    return {name: timed(work) for name, work in zip(STAGES, (do_teach, do_sft, do_grpo, do_eval), strict=True)}


def one(src: Path) -> dict[str, Any]:
    """The slices by the version in ``src``, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--alone"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="the src folder of another checkout")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="take the slices here and print them")
    options = parser.parse_args()
    if options.alone:
        gc.set_threshold(100_000, 50, 50)  # as the command line does
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            result: dict[str, Any] = slices(Path(folder))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({**result, "peak_mib": usage.ru_maxrss / 1024, "faults": usage.ru_minflt}))
        return
    own = Path(__file__).parents[1] / "src"
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for _ in range(options.runs):
        theirs += [one(options.against)] if options.against else []
        ours.append(one(own))
    for name in STAGES:
        mine, other = (statistics.median(each[name]["seconds"] for each in side) for side in (ours, theirs or ours))
        equal = len({each[name]["digest"] for each in (*ours, *theirs)}) == 1
        print(
            f"{name:6} {mine:6.2f} CPU s, before {other:6.2f}, {other / mine:.2f} x, {'equal' if equal else 'NOT EQUAL'}"
        )
    for name in ("peak_mib", "faults"):
        mine, other = (statistics.median(each[name] for each in side) for side in (ours, theirs or ours))
        print(f"{name:8} {mine:.0f}, before {other:.0f}")
    total, before = (
        statistics.median(sum(each[name]["seconds"] for name in STAGES) for each in side)
        for side in (ours, theirs or ours)
    )
    line = {
        "name": "rhythm_stages",
        "ratio": round(before / total, 3),
        "ours": round(total, 2),
        "other": round(before, 2),
    }
    print(json.dumps({**line, "unit": "CPU seconds of slices", "runs": options.runs}))
    digests = {name: {each[name]["digest"] for each in (*ours, *theirs)} for name in STAGES}
    if any(len(kinds) > 1 for kinds in digests.values()):
        sys.exit("the two versions do not compute the same")


if __name__ == "__main__":
    main()
