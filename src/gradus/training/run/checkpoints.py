"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint holds the trained weights, the optimizer and a small state; no random-number state, because what a step draws
depends on its keys alone. All processes take part in writing, because each may hold a part of the model; process 0 writes. The files
are the same for any number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from gradus.core import StorageError
from gradus.core.files import check_checksums, write_folder
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.policies.local.export import generation_config, write_model
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.settings import free_sampling
from gradus.training.distributed.processes import barrier, gather_full_tensor, shard_like, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.optimizers import trainable
from gradus.training.run.folder import RunFolder

_FILES: Any = safetensors  # it has no types
KEPT = 2  # of the newest checkpoints; a second one is there if the newest is damaged


@frozen_record
class Checkpoint:
    """``step``: the last one that was taken. ``offset``: bytes of metrics written then. ``state``: JSON values of the loop."""

    step: int
    offset: int
    state: Json = field(default_factory=JsonDict)


def loop_values(state: object) -> JsonDict:
    """Returns the JSON values of a loop's state, without its step."""
    return {name: value for name, value in vars(state).items() if name != "step"}


class TrainingState(Protocol):
    """Weights and optimizer of a run, wherever they are."""

    def collect(self) -> Callable[[Path], None]:
        """Gathers what is to be stored, which all processes take part in; returns what writes it to a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Puts weights and optimizer back as they were. Raises StorageError if the files are damaged or of another model."""


@dataclass(frozen=True)
class LocalState:
    """The trained weights of a model in this process (or a shard of them), and their optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def collect(self) -> Callable[[Path], None]:
        """Gathers weights and optimizer; returns what writes them."""
        weights = {name: gather_full_tensor(value) for name, value in trainable(self.model).items()}
        optimizer_state = self.optimizer.state_dict()

        def write(folder: Path) -> None:
            _FILES.save_file(weights, folder / "weights.safetensors")
            torch.save(optimizer_state, folder / "optimizer.pt")

        return write

    def load(self, folder: Path) -> None:
        """Puts both back as they were. Raises StorageError if the weights are those of another model."""
        weights: dict[str, Tensor] = _FILES.load_file(folder / "weights.safetensors")
        optimizer_state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        parameters = trainable(self.model)
        odd = sorted(set(parameters) ^ set(weights))
        if odd:
            raise StorageError(f"it is of another model: {len(odd)} tensors differ, the first is {odd[0]}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(shard_like(weights[name], parameter))
        self.optimizer.load_state_dict(optimizer_state)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, training: TrainingState) -> Path:
    """Writes ``folder/checkpoints/step-XXXXXX`` whole or not at all, then removes all but the newest ones."""
    path = folder / "checkpoints" / f"step-{checkpoint.step:06d}"
    write_state = training.collect()

    def fill(aside: Path) -> None:
        write_state(aside)
        state = json.dumps(asdict(checkpoint), indent=2)
        (aside / "state.json").write_text(state + "\n", encoding="utf-8")

    if world().main:
        write_folder(path, fill)
        for old in _checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    barrier()
    return path


def load_checkpoint(path: Path, training: TrainingState) -> Checkpoint:
    """Puts weights and optimizer back as they were. Raises StorageError if the checkpoint is damaged or does not fit the model."""
    try:
        check_checksums(path)
        checkpoint = Checkpoint(**json.loads((path / "state.json").read_text(encoding="utf-8")))
        training.load(path)
    except Exception as error:
        raise StorageError(
            f"could not read the checkpoint {path}: {error}; remove it to go on from the one before it"
        ) from error
    return checkpoint


def go_back(folder: RunFolder, training: TrainingState) -> Checkpoint | None:
    """Puts a run back to its newest checkpoint; None, without metrics, if none was kept."""
    checkpoints = _checkpoints(folder.path)
    if not checkpoints:
        folder.truncate(0)
        return None
    checkpoint = load_checkpoint(checkpoints[-1], training)
    folder.truncate(checkpoint.offset)
    return checkpoint


def save_model(path: Path, loaded: LoadedModel) -> None:
    """Write an ordinary Hugging Face folder (a peft folder if the model wears adapters), whole or not at all.

    What the model was trained with is stored beside it. transformers generates by it too, not by what the base model recommends.
    """
    state = full_state_dict(loaded.model)

    def fill(aside: Path) -> None:
        write_model(aside, loaded, state)
        if loaded.settings.sampling is not None:
            generation_config(loaded, free_sampling(loaded.settings)).save_pretrained(aside)

    if world().main:
        write_folder(path, fill)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "checkpoints").glob("step-*") if path.is_dir())
