"""Step by step against TRL's GRPOTrainer: one model, one tokenizer, equal learning settings, steps in turn.

Each side has a process of its own, as when it trains alone: in one process each step would find the other's memory and caches.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from _shared import print_line, status_kib
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gradus.core import EnvironmentSpec
from gradus.policies.local.loading import load_model, quiet_transformers
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.training.config import GrpoConfig
from gradus.training.grpo import GrpoLoop
from gradus.training.learner import Learner
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import Screen

THREADS = 2
_SAID = "step "  # begins a line that is for the process that asked


class OurSteps:
    """Gradus' loop, one step a call."""

    def __init__(self, model: Path, spec: EnvironmentSpec, config: GrpoConfig, folder: Path) -> None:
        self.records: list[Any] = []
        learner = Learner(load_model(model, device="cpu"), spec, config)
        self._loop = GrpoLoop(learner, spec, RunFolder(folder, writing=True))
        self._screen = Screen("bench", steps=1, figures={}, live=False)

    def __call__(self) -> float:
        """Take one step; seconds."""
        started = time.perf_counter()
        record = self._loop.step(self._screen)
        seconds = time.perf_counter() - started
        self._loop.state.step += 1
        self.records.append(record)
        return seconds


class Elsewhere:
    """:class:`OurSteps` in another process, which the same script is: it takes a step each time a line comes, and rests between them."""

    def __init__(self) -> None:
        command = [sys.executable, *sys.argv, "--serve"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.records: list[Any] = []
        self._heard()

    def __call__(self) -> float:
        """Let it take one step; seconds, by its own clock."""
        assert self._child.stdin is not None
        print(file=self._child.stdin, flush=True)
        said = self._heard()
        self.records.append(said["record"])
        return said["seconds"]

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _heard(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(_SAID):
                return json.loads(line.removeprefix(_SAID))
        raise SystemExit(f"the process of our steps ended with code {self._child.wait()}")


def compare(
    name: str,
    options: argparse.Namespace,
    ours: Callable[[Path], OurSteps],
    theirs: Callable[[Path, Alternate], GRPOTrainer],
    again: Sequence[str] = (),
) -> None:
    """Takes the steps of both sides in turn, and then some of each alone for its peak memory. ``again``: a script's own options."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="gradus-bench-") as place:
        folder = Path(place)
        if options.serve or options.only == "ours":
            _take_ours(ours(folder), options)
            return
        elsewhere = None if options.only == "trl" else Elsewhere()
        watch = Alternate(elsewhere)
        theirs(folder, watch).train()
    if elsewhere is None:
        print(json.dumps({"peak_mib": status_kib("VmHWM") / 1024}))
        return
    elsewhere.close()
    same = ["--steps", "0", *(["--bf16"] if options.bf16 else []), *again]
    memory = (_memory_of([*same, "--only", "ours"]), _memory_of([*same, "--only", "trl"]))
    report(name, options, watch.ours_seconds[1:], watch.theirs_seconds[1:], elsewhere.records[-1], memory)


def _take_ours(ours: OurSteps, options: argparse.Namespace) -> None:
    """Takes a step for each line that comes in, or all of them and then prints the peak memory."""
    if not options.serve:
        for _ in range(options.steps + 1):
            ours()
        print(json.dumps({"peak_mib": status_kib("VmHWM") / 1024}))
        return
    print(_SAID + "{}", flush=True)
    for _ in sys.stdin:
        seconds = ours()
        print(_SAID + json.dumps({"seconds": seconds, "record": ours.records[-1]}, default=float), flush=True)


def _memory_of(arguments: Sequence[str]) -> float:
    """Peak memory of a process that takes one side's steps alone, MiB."""
    done = subprocess.run([sys.executable, sys.argv[0], *arguments], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["peak_mib"])


class Alternate(TrainerCallback):
    """Times TRL's steps, generation included, and takes one of ours behind each."""

    def __init__(self, ours: Callable[[], float] | None) -> None:
        self.ours = ours
        self.theirs_seconds: list[float] = []
        self.ours_seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.theirs_seconds.append(time.perf_counter() - self._began)
        if self.ours is not None:
            self.ours_seconds.append(self.ours())


def trl_trainer(
    model: Path,
    prompts: Sequence[str],
    reward: Callable[..., Any],
    folder: Path,
    *,
    steps: int,
    groups: int,
    group_size: int,
    max_tokens: int,
    lr: float,
    rows: int,
    rollout: Callable[..., dict[str, Any]] | None = None,
    callback: TrainerCallback | None = None,
    seed: int = 0,
    bf16: bool = False,
) -> GRPOTrainer:
    """GRPOTrainer with the settings that Gradus has by default: DAPO's loss and clip, batch scale, no KL term."""
    batch = groups * group_size
    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=min(rows, batch),
        gradient_accumulation_steps=max(1, batch // rows),
        num_generations=group_size,
        max_completion_length=max_tokens,
        max_steps=steps,
        learning_rate=lr,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="batch",
        temperature=1.0,
        bf16=bf16,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=seed,
    )
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(model)
        weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return GRPOTrainer(
        model=weights,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": prompt, "place": place} for place, prompt in enumerate(messages)]),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[callback] if callback else None,
    )


def our_config(options: argparse.Namespace, *, new: int, **settings: Any) -> GrpoConfig:
    """Settings of ours that TRL's trainer gets too."""
    return GrpoConfig(
        max_steps=options.steps + 1,
        sampling=SamplingConfig(max_new_tokens=new),
        backward="auto",
        autocast=options.bf16,
        validation_every=0,
        store_every=0,
        device="cpu",
        **settings,
    )


def nano(folder: Path, spec: EnvironmentSpec, shape: NanoConfig) -> Path:
    """A fresh model for an environment."""
    assert spec.language.vocabulary is not None
    return make_nano(folder / "model", spec.language.vocabulary(), shape, seed=0)


def report(
    name: str,
    options: argparse.Namespace,
    ours: Sequence[float],
    theirs: Sequence[float],
    record: dict[str, Any],
    memory: tuple[float, float],
) -> None:
    """The table, and the line for machines."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    precision = "both in bfloat16" if options.bf16 else "both in float32"
    table = Table(title=f"{name}, {precision}")
    for column in ("", "Gradus", "TRL"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("seconds a step (median)", f"{mine:.2f}", f"{other:.2f}")
    table.add_row("fastest - slowest", f"{min(ours):.2f} - {max(ours):.2f}", f"{min(theirs):.2f} - {max(theirs):.2f}")
    table.add_row("ratio of medians", "1", f"{other / mine:.2f}")
    table.add_row("peak memory, MiB", f"{memory[0]:.0f}", f"{memory[1]:.0f}")
    for part in ("policy", "environment", "reward", "train", "update"):
        table.add_row(f"  {part}, seconds", f"{record['seconds'][part]:.2f}", "")
    table.add_row("logp diff, nats", f"{record['logp_diff_max']:.1e}", "")
    Console(width=100).print(table)
    print_line(name, ratio=other / mine, ours=mine, other=other, unit="seconds a step", runs=len(ours))


def arguments(description: str) -> argparse.ArgumentParser:
    """Options that all these scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each side, after one that is not")
    parser.add_argument("--only", choices=("ours", "trl"), help="take one side's steps alone and print peak memory")
    parser.add_argument(
        "--bf16", action="store_true", help="both sides under autocast in bfloat16, which is TRL's default"
    )
    parser.add_argument("--serve", action="store_true", help="(what it starts the process of our steps with)")
    return parser
