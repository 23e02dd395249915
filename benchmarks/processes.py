"""One process against two on one machine, one thread and one core each: priming and GRPO on Rhythm, a whole step by the clock.

The same global batch every time (32 whole weeks to read; 8 x 8 weeks to play and to train on), with the recipe's model. Two processes
hold a whole model each (data parallel) or a part each (FSDP); ways alternate, so that all meet the same machine. It needs two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FSDP = "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
WAYS = {"alone": None, "data parallel": "--multi_gpu", "FSDP": FSDP}
KINDS = ("sft", "grpo")


def train(model: Path, folder: Path, steps: int) -> None:
    """What each process runs: ``steps`` of priming and of GRPO."""
    from gradus import environments
    from gradus.policies import SamplingConfig
    from gradus.rollouts import play
    from gradus.training import GrpoConfig, SftConfig, train_grpo, train_sft

    spec = environments.load("rhythm")
    common: dict[str, Any] = {"max_steps": steps, "threads": 1, "device": "cpu", "token_budget": 16384}
    lessons = play(spec, spec.policy("heuristic"), [spec.train_task(index) for index in range(64)]).episodes
    priming = SftConfig(**common, epochs=steps, batch_size=32, validation_share=0, checkpoint_every=steps)
    train_sft(model, lessons, priming, folder / "sft", live=False)
    sampling = SamplingConfig(max_new_tokens=8, grammar=True)
    loop = GrpoConfig(**common, groups=8, group_size=8, sampling=sampling, validation_every=0, checkpoint_every=steps)
    train_grpo(model, spec, loop, folder / "grpo", live=False)


def launch(way: str, model: Path, folder: Path, steps: int, port: int) -> dict[str, list[float]]:
    """Train in a way of its own processes; seconds of the steps behind the first, by kind."""
    options = WAYS[way]
    command = [sys.executable]
    if options is not None:
        common = (
            f"--num_processes 2 --num_machines 1 --main_process_port {port} --mixed_precision no --dynamo_backend no"
        )
        command += ["-m", "accelerate.commands.launch", *options.split(), *common.split()]
    command += [__file__, "--train", str(model), str(folder), "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr[-3000:])
    found: dict[str, list[float]] = {}
    for kind in KINDS:
        records = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
        seconds = [record["seconds"] for record in records if record["kind"] in ("sft", "step")]
        found[kind] = [one["total"] if isinstance(one, dict) else one for one in seconds][1:]
    return found


def nano(folder: Path) -> Path:
    """The model of Rhythm's recipe, untrained."""
    from gradus import environments
    from gradus.policies import NanoConfig, make_nano

    spec = environments.load("rhythm")
    assert spec.vocabulary is not None
    shape = NanoConfig(hidden_size=160, layers=3, heads=4, kv_heads=4, intermediate_size=512, context=1024)
    return make_nano(folder, spec.vocabulary(), shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each kind in a round; the first is not counted")
    parser.add_argument("--port", type=int, default=29533)
    parser.add_argument("--train", nargs=2, metavar=("MODEL", "FOLDER"), help="(what this script calls itself with)")
    options = parser.parse_args()
    if options.train:
        return train(Path(options.train[0]), Path(options.train[1]), options.steps)
    seconds: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as name:
        model = nano(Path(name) / "model")
        for number in range(options.rounds):
            for way in WAYS:
                found = launch(way, model, Path(name) / f"{number} {way}", options.steps, options.port)
                for kind in KINDS:
                    seconds[kind][way] += found[kind]
    medians = {kind: {way: statistics.median(taken) for way, taken in ways.items()} for kind, ways in seconds.items()}
    print(f"seconds of a step, medians of {options.rounds * (options.steps - 1)}; {len(os.sched_getaffinity(0))} cores")
    for kind, ways in medians.items():
        print(kind, " ".join(f"  {way}: {median:.2f} ({median / ways['alone']:.2f} x)" for way, median in ways.items()))
    record = {
        "name": "two_processes_over_one",
        "ratio": medians["grpo"]["alone"] / medians["grpo"]["data parallel"],
        "ours": medians["grpo"]["data parallel"],
        "other": medians["grpo"]["alone"],
        "unit": "s",
        "runs": seconds,
    }
    print(json.dumps(record))
    return None


if __name__ == "__main__":
    main()
