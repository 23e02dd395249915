"""Saved adapters: folders of peft's, with Adam's moments beside the weights. What was said to be saved survives a kill."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from gradus.core.files import read_json, write_folder, write_json
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json
from gradus.interop.serving.requests import ApiError
from gradus.interop.tinker.adapters import AdapterShape, Weights

_KINDS = {"weights": "training", "sampler_weights": "sampler"}  # parts of a path, and what the protocol calls them
_PATH = re.compile(r"tinker://([\w-]+(?::train:\d+)?)/(weights|sampler_weights)/(\w[\w.-]{0,127})", re.ASCII)
_MODEL = "adapter_model.safetensors"
_MOMENTS = "optimizer.pt"
_CARD = "checkpoint.json"


@frozen_record
class SavedAdapter:
    """A checkpoint's card."""

    # tinker://MODEL/KIND/NAME
    path: str
    # The digest of its client's key.
    owner: str
    base_model: str
    shape: AdapterShape
    # In seconds since 1970; it may never expire.
    created: float
    expires: float | None

    @property
    def checkpoint_id(self) -> str:
        """The path behind the model."""
        return self.path.removeprefix("tinker://").split("/", 1)[1]

    def listed(self) -> Json:
        """The checkpoint as a list of the protocol shows it."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "checkpoint_type": _KINDS[self.checkpoint_id.split("/")[0]],
            "time": datetime.fromtimestamp(self.created, UTC).isoformat(),
            "tinker_path": self.path,
            "expires_at": self.expires and datetime.fromtimestamp(self.expires, UTC).isoformat(),
        }


class CheckpointStore:
    """The checkpoints below a folder, which belong to the client that saved them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check_path(self, path: str) -> Path:
        """Returns the folder of a path ``tinker://MODEL/KIND/NAME``. Raises ApiError for any other text."""
        match = _PATH.fullmatch(path)
        if match is None:
            raise ApiError(
                "a path is tinker://MODEL/weights/NAME or .../sampler_weights/NAME; NAME of letters, digits, . _ -"
            )
        return self._folder.joinpath(*match.groups())

    def card(self, path: str, owner: str) -> SavedAdapter:
        """Reads the card of a client's checkpoint. Raises ApiError, 404, if this client has none there."""
        file = self.check_path(path) / _CARD
        card = _read_card(file) if file.is_file() else None
        # One refusal for all, so that nobody learns what others have.
        if card is None or card.owner != owner or _expired(card):
            raise ApiError(f"you have no checkpoint {path}; GET /api/v1/checkpoints lists yours", status=404)
        return card

    def cards(self, owner: str) -> list[SavedAdapter]:
        """The client's checkpoints, oldest first. Those whose time is over are removed."""
        mine: list[SavedAdapter] = []
        for file in self._folder.glob(f"*/*/*/{_CARD}"):
            card = _read_card(file)
            if _expired(card):
                shutil.rmtree(file.parent, ignore_errors=True)
            elif card.owner == owner:
                mine.append(card)
        return sorted(mine, key=lambda card: (card.created, card.path))

    def save(
        self, card: SavedAdapter, weights: Weights, moments: Mapping[str, Any] | None, describe: Callable[[Path], Any]
    ) -> None:
        """Writes a checkpoint, synced, whole or not at all. ``describe`` writes peft's config into the folder."""

        def fill(folder: Path) -> None:
            describe(folder)
            tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
            save_file(tensors, folder / _MODEL)
            if moments is not None:
                torch.save(moments, folder / _MOMENTS)
            write_json(folder / _CARD, asdict(card))

        write_folder(self.check_path(card.path), fill)

    def load(self, card: SavedAdapter) -> tuple[Weights, Mapping[str, Any] | None]:
        """The weights of a checkpoint and Adam's moments: empty before the first step, None of a sampler's."""
        folder = self.check_path(card.path)
        file = folder / _MOMENTS
        moments = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else None
        return load_file(folder / _MODEL), moments


def _read_card(file: Path) -> SavedAdapter:
    document: dict[str, Any] = read_json(file)
    document["shape"] = AdapterShape(**document["shape"])
    return SavedAdapter(**document)


def _expired(card: SavedAdapter) -> bool:
    return card.expires is not None and card.expires < time.time()
