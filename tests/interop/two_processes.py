"""Trains a few steps and writes down the first gradient and the last weights; run alone or by ``accelerate launch``.

``two_processes.py MODEL FOLDER KIND STEPS``, KIND grpo or sft.
"""

import sys
import time
from pathlib import Path

import torch

import gradus.training.trainer as trainer
from gradus.policies import SamplingConfig
from gradus.training import GrpoConfig, SftConfig, train_grpo, train_sft
from gradus.training.distributed import world

sys.path.insert(0, str(Path(__file__).parent.parent))

from fakes import Answers, lamps

from gradus.rollouts import play


def grpo(model: str, folder: Path, steps: int) -> Path:
    config = GrpoConfig(
        max_steps=steps,
        groups=5,  # an odd number, so that the shares differ
        group_size=4,
        learning_rate=3e-3,
        sampling=SamplingConfig(max_new_tokens=6, grammar=True),
        validation_every=0,
        checkpoint_every=steps,
        token_budget=256,
    )
    return train_grpo(model, lamps(), config, folder / "run", live=False).final


def sft(model: str, folder: Path, steps: int) -> Path:
    spec = lamps()
    taught = Answers("right", lambda start, seen: f"{start.environment.outcome()['number']} {seen.data['colour']}")
    lessons = play(spec, taught, [spec.train_task(index) for index in range(23)]).episodes
    config = SftConfig(
        epochs=steps, max_steps=steps, batch_size=7, validation_share=0, learning_rate=3e-3, token_budget=128
    )
    return train_sft(model, lessons, config, folder / "run", live=False).final


def main() -> None:
    model, folder, kind, steps = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    gradients: list[torch.Tensor] = []
    clip = trainer.clip_gradients

    def watch(module: torch.nn.Module, limit: float) -> torch.Tensor:
        if not gradients:
            gradients.append(torch.cat([one.grad.reshape(-1) for one in module.parameters() if one.grad is not None]))
        return clip(module, limit)

    trainer.clip_gradients = watch
    started = time.perf_counter()
    final = {"grpo": grpo, "sft": sft}[kind](model, folder, steps)
    if world().main:
        seconds = time.perf_counter() - started
        torch.save(
            {"gradient": gradients[0], "size": world().size, "final": str(final), "seconds": seconds},
            folder / "seen.pt",
        )


if __name__ == "__main__":
    main()
