"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint holds the trained weights, the optimizer and a small state; no random-number state, because what a step draws
depends on its keys alone. All processes take part in writing, because each may hold a part of the model; process 0 writes. The files
are the same for any number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gradus.core import StorageError
from gradus.core.files import check_checksums, write_folder
from gradus.policies.local.export import generation_config, write_model
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.settings import free_sampling
from gradus.training.distributed.processes import barrier, gather_full_tensor, shard_like, world
from gradus.training.engine.fsdp import full_state_dict
from gradus.training.engine.optimizers import trainable
from gradus.training.run.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """``step``: the last one that was taken. ``offset``: bytes of metrics written then. ``state``: JSON values of the loop."""

    step: int
    offset: int
    state: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    keep: int = 2,
) -> Path:
    """Write ``folder/checkpoints/step-XXXXXX`` whole or not at all, then remove all but the ``keep`` newest."""
    path = folder / "checkpoints" / f"step-{checkpoint.step:06d}"
    weights = _gather_weights(model)
    optimizer_state = optimizer.state_dict()

    def fill(aside: Path) -> None:
        save_file(weights, aside / "weights.safetensors")
        torch.save(optimizer_state, aside / "optimizer.pt")
        state = json.dumps(asdict(checkpoint), indent=2)
        (aside / "state.json").write_text(state + "\n", encoding="utf-8")

    if world().main:
        write_folder(path, fill)
        for old in _checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    barrier()
    return path


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Checkpoint:
    """Put weights and optimizer back as they were. Raises StorageError if the checkpoint is damaged or does not fit the model."""
    try:
        check_checksums(path)
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        weights = load_file(path / "weights.safetensors")
        optimizer_state = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
        checkpoint = Checkpoint(step=state["step"], offset=state["offset"], state=state["state"])
    except Exception as error:
        raise StorageError(
            f"could not read the checkpoint {path}: {error}; remove it to go on from the one before it"
        ) from error
    _put_weights(weights, model, path)
    optimizer.load_state_dict(optimizer_state)
    return checkpoint


def _gather_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: gather_full_tensor(value) for name, value in trainable(model).items()}


def _put_weights(weights: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    parameters = trainable(model)
    if set(parameters) != set(weights):
        odd = sorted(set(parameters) ^ set(weights))
        raise StorageError(
            f"the checkpoint {path} is of another model: {len(odd)} tensors differ, the first is {odd[0]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_like(weights[name], parameter))


def go_back(folder: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer) -> Checkpoint | None:
    """Put a run back to its newest checkpoint; None, without metrics, if none was kept."""
    checkpoints = _checkpoints(folder.path)
    if not checkpoints:
        folder.truncate(0)
        return None
    checkpoint = load_checkpoint(checkpoints[-1], model, optimizer)
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
