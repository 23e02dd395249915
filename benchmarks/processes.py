"""One process against two on one machine, one thread and one core each: SFT and GRPO on Rhythm, a whole step by the clock.

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
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FSDP = "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
WAYS = {"alone": None, "data parallel": "--multi_gpu", "FSDP": FSDP}
KINDS = ("sft", "grpo")


def train(model: Path, folder: Path, steps: int) -> None:
    """What each process runs: ``steps`` of SFT and of GRPO. Writes down its CPU seconds behind each step."""
    from gradus import environments
    from gradus.policies.local.sampling import SamplingConfig
    from gradus.rollouts import roll_out
    from gradus.training.config import GrpoConfig
    from gradus.training.distributed.processes import world
    from gradus.training.grpo import train_grpo
    from gradus.training.lesson_config import SftConfig
    from gradus.training.run.options import GrpoOptions, RunOptions
    from gradus.training.sft import train_sft

    spec = environments.load("rhythm")
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    common: dict[str, Any] = {"max_steps": steps, "threads": 1, "device": "cpu", "token_budget": 16384}
    lessons = roll_out(spec, spec.policy("heuristic"), [spec.train_task(index) for index in range(64)]).episodes
    priming = SftConfig(**common, epochs=steps, batch_size=32, validation_share=0, checkpoint_every=steps)
    clock = time.process_time
    train_sft(
        model,
        lessons,
        priming,
        folder / "sft",
        options=RunOptions(live=False, on_step=lambda record: spent["sft"].append(clock())),
    )
    sampling = SamplingConfig(max_new_tokens=8, grammar=True)
    loop = GrpoConfig(**common, groups=8, group_size=8, sampling=sampling, validation_every=0, checkpoint_every=steps)
    train_grpo(
        model,
        spec,
        loop,
        folder / "grpo",
        options=GrpoOptions(live=False, on_step=lambda record: spent["grpo"].append(clock())),
    )
    (folder / f"cpu-{world().rank}.json").write_text(json.dumps(spent))


Found = dict[str, dict[str, list[float]]]


def launch(way: str, model: Path, folder: Path, steps: int, port: int) -> Found:
    """Train in a way of its own processes; seconds by the clock, and CPU seconds in a process, of the steps behind the first."""
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
    spent = [json.loads(path.read_text()) for path in folder.glob("cpu-*.json")]
    result: Found = {}
    for kind in KINDS:
        records = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
        seconds = [record["seconds"] for record in records if record["kind"] in ("sft", "step")]
        cpu = [after - before for one in spent for before, after in pairwise(one[kind])]
        result[kind] = {"clock": [one["total"] if isinstance(one, dict) else one for one in seconds][1:], "cpu": cpu}
    return result


def nano(folder: Path) -> Path:
    """The model of Rhythm's recipe, untrained."""
    from gradus import environments
    from gradus.policies.nano.model import NanoConfig, make_nano

    spec = environments.load("rhythm")
    assert spec.language.vocabulary is not None
    shape = NanoConfig(hidden_size=160, layers=3, heads=4, kv_heads=4, intermediate_size=512, context=1024)
    return make_nano(folder, spec.language.vocabulary(), shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each kind in a round; the first is not counted")
    parser.add_argument("--port", type=int, default=29533)
    parser.add_argument("--train", nargs=2, metavar=("MODEL", "FOLDER"), help="(what this script calls itself with)")
    options = parser.parse_args()
    if options.train:
        return train(Path(options.train[0]), Path(options.train[1]), options.steps)
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {
        kind: {way: {"clock": [], "cpu": []} for way in WAYS} for kind in KINDS
    }
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as name:
        model = nano(Path(name) / "model")
        for number in range(options.rounds):
            for way in WAYS:
                result = launch(way, model, Path(name) / f"{number} {way}", options.steps, options.port)
                for kind in KINDS:
                    for what, values in result[kind].items():
                        seconds[kind][way][what] += values
    medians = {
        kind: {way: {what: statistics.median(values) for what, values in taken.items()} for way, taken in ways.items()}
        for kind, ways in seconds.items()
    }
    table = Table(title=f"seconds of a step, medians; {len(os.sched_getaffinity(0))} cores")
    for column in ("step", "way", "by the clock", "of one process", "CPU in each process"):
        table.add_column(column)
    for kind, ways in medians.items():
        for way, one in ways.items():
            ratio = one["clock"] / ways["alone"]["clock"]
            table.add_row(kind, way, f"{one['clock']:.2f}", f"{ratio:.2f}", f"{one['cpu']:.2f}")
    Console(width=100).print(table)
    record = {
        "name": "two_processes_over_one",
        "ratio": medians["grpo"]["alone"]["clock"] / medians["grpo"]["data parallel"]["clock"],
        "ours": medians["grpo"]["data parallel"]["clock"],
        "other": medians["grpo"]["alone"]["clock"],
        "unit": "s",
        "runs": seconds,
    }
    print(json.dumps(record))
    return None


if __name__ == "__main__":
    main()
