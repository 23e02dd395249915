"""Trains a few steps and writes down the first gradient and the last weights; imported, or run by ``accelerate launch``.

``two_processes.py MODEL FOLDER STEPS KIND...``: each kind is grpo or sft, with what it differs in behind a plus (``sft+muon``), and
trains in FOLDER/KIND; a run that is there already goes on from its last checkpoint.
"""

import atexit
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import gradus.training.engine.fsdp as sharding
import gradus.training.engine.loss_step as trainer
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.scripted import FunctionPolicy
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import barrier, full_tensor, total, world
from gradus.training.engine.master_weights import master_of
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import SftConfig
from gradus.training.run import checkpoints
from gradus.training.run.checkpoints import save_model
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.sft import train_sft
from gradus.training.trainer_config import LoraConfig

sys.path.insert(0, str(Path(__file__).parent.parent))

from fakes import lamps

from gradus.rollouts import roll_out

CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora": {"lora": LoraConfig(rank=2, alpha=4)},
    "muon": {"optimizer": "muon"},
    "checkpointed": {"gradient_checkpointing": True},
    "validated": {"validation_every": 2, "validation_tasks": 6},
    "served": {},
    "autocast": {"autocast": True},
    "bfloat16": {"dtype": "bfloat16"},
}
BOTH: dict[str, Any] = {"checkpoint_every": 2, "lr": 3e-3, "threads": 1}


def grpo(model: str, folder: Path, steps: int, change: str) -> None:
    config = GrpoConfig(
        **{
            "max_steps": steps,
            "groups": 5,  # an odd number, so that the shares differ
            "group_size": 4,
            "sampling": SamplingConfig(max_new_tokens=6, grammar=True),
            "validation_every": 0,
            "token_budget": 160,  # so small that a share takes more passes than the other
            **BOTH,
            **CHANGES[change],
        }
    )
    outside = served(model, folder.parent / "sampler", config) if change == "served" else {}
    train_grpo(model, lamps(), config, folder, resume=folder.exists(), options=GrpoOptions(live=False, **outside))


def served(model: str, folder: Path, config: GrpoConfig) -> dict[str, Any]:
    """A sampler that reads the weights the trainer wrote, as a server would: no whole copy is needed in the trainer."""
    spec = lamps()
    policy = LocalPolicy(load_model(model, device="cpu"), config.sampling, grammar=spec.language.grammar)

    def push_weights(loaded: LoadedModel, step: int) -> None:
        save_model(folder, loaded)
        barrier()
        policy.loaded.model.load_state_dict(load_model(folder, device="cpu").model.state_dict())
        barrier()

    return {"sampler": policy, "push_weights": push_weights}


def sft(model: str, folder: Path, steps: int, change: str) -> None:
    spec = lamps()
    taught = FunctionPolicy(
        "right", lambda seen, script: f"{script.start.environment.outcome()['number']} {seen.data['color']}"
    )
    lessons = roll_out(spec, taught, [spec.train_task(index) for index in range(23)]).episodes
    config = SftConfig(
        **{
            "epochs": steps,
            "max_steps": steps,
            "batch_size": 7,
            "validation_share": 0.2,
            "token_budget": 96,
            **BOTH,
            **CHANGES[change],
        }
    )
    train_sft(model, lessons, config, folder, resume=folder.exists(), options=RunOptions(live=False))


def watched(kind: str, model: str, folder: Path, steps: int) -> dict[str, Any]:
    """Train and give the first gradient, the share of the parameters that this process keeps between steps, and how many passes
    without effect all processes took."""
    seen: dict[str, Any] = {}
    idle: list[float] = []
    clip, idle_pass, kept = trainer.clip_gradients, sharding._idle_pass, checkpoints.KEPT

    def count(loaded: LoadedModel, backward: Callable[[torch.Tensor], None]) -> None:
        idle.append(1.0)
        idle_pass(loaded, backward)

    def watch(module: torch.nn.Module, limit: float) -> torch.Tensor:
        if not seen:
            trained = {name: master_of(one) for name, one in module.named_parameters() if one.requires_grad}
            seen["gradient"] = torch.cat(
                [full_tensor(one.grad).reshape(-1) for one in trained.values() if one.grad is not None]
            )
            parts = [getattr(one, "to_local", lambda one=one: one)().numel() for one in trained.values()]
            seen["kept"] = sum(parts) / sum(one.numel() for one in trained.values())
        return clip(module, limit)

    started = time.perf_counter()
    name, _, change = kind.partition("+")
    trainer.clip_gradients, sharding._idle_pass, checkpoints.KEPT = watch, count, 9
    try:
        {"grpo": grpo, "sft": sft}[name](model, folder / "run", steps, change or "plain")
    finally:
        trainer.clip_gradients, sharding._idle_pass, checkpoints.KEPT = clip, idle_pass, kept
    return {**seen, "idle": total([sum(idle)])[0], "size": world().size, "seconds": time.perf_counter() - started}


def say_if_joined() -> None:
    if torch.distributed.is_initialized():
        print("the process group was not left", flush=True)


def run(model: str, folder: Path, steps: int, kinds: Sequence[str]) -> None:
    for kind in kinds:
        seen = watched(kind, model, folder / kind, steps)
        if world().main:
            torch.save(seen, folder / kind / "seen.pt")


def main() -> None:
    atexit.register(say_if_joined)  # the first to be registered is the last to be called
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    total([1.0])


if __name__ == "__main__":
    main()
