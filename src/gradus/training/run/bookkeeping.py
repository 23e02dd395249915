"""Keeps the files of a GRPO run: its state, checkpoints, the best weights, and samples of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gradus.core import Group
from gradus.policies.local.loading import LoadedModel
from gradus.rollouts import write_episodes
from gradus.training.run.checkpoints import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_model,
)
from gradus.training.run.folder import RunFolder


@dataclass
class GrpoState:
    """The state of a run in a checkpoint, besides weights and optimizer."""

    step: int = 0
    next_task: int = 0
    best_step: int | None = None
    best_reward: float | None = None
    alerts: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] | None = None


class RunBook:
    """The files of one GRPO run."""

    def __init__(self, folder: RunFolder, loaded: LoadedModel, inference_model: LoadedModel) -> None:
        self.folder, self.loaded, self.inference_model = folder, loaded, inference_model

    def checkpoint(
        self,
        state: GrpoState,
        optimizer: torch.optim.Optimizer,
        *,
        keep: int,
        more: Callable[[Path], None] | None = None,
    ) -> None:
        """Write down where the run stands; ``more`` writes further files into the checkpoint."""
        values = {name: value for name, value in vars(state).items() if name != "step"}
        checkpoint = Checkpoint(step=state.step, offset=self.folder.offset(), state=values)
        save_checkpoint(self.folder.path, checkpoint, self.loaded.model, optimizer, keep=keep, more=more)

    def restore(self, optimizer: torch.optim.Optimizer, *, more: Callable[[Path], None] | None = None) -> GrpoState:
        """Go back to the newest checkpoint; to the beginning if there is none. ``more`` reads what it wrote there."""
        path = latest_checkpoint(self.folder.path)
        if path is None:
            self.folder.truncate(0)
            return GrpoState()
        checkpoint = load_checkpoint(path, self.loaded.model, optimizer)
        if more is not None:
            more(path)
        self.folder.truncate(checkpoint.offset)
        return GrpoState(step=checkpoint.step, **checkpoint.state)

    def save(self, name: str) -> None:
        """Write the weights as they are to a model folder of the run."""
        save_model(self.folder.path / name, self.inference_model)

    def store_episodes(self, step: int, groups: Sequence[Group], environment: str) -> None:
        """Keep a sample of what was sampled, tokens and log-probs included."""
        if self.folder.writing:
            path = self.folder.path / "episodes" / f"step-{step:06d}.jsonl.gz"
            write_episodes(path, [each for group in groups for each in group.episodes], environment=environment)
