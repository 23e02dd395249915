"""Which folders hold a model. Only JSON is read, so that no torch is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

__all__ = ["RUN_MODELS", "find_model", "model_kind"]

RUN_MODELS = ("grpo/best", "grpo/final", "sft/best", "sft/final", "sft/model", "best", "final")


def model_kind(folder: Path) -> Literal["model", "adapter"] | None:
    """What ``folder`` holds: a model, an adapter (LoRA) without its base, or neither.

    The config.json of a run is no model's: a model's names its model_type.
    """
    try:
        if "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
            return "model"
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return "adapter" if (folder / "adapter_config.json").is_file() else None


def find_model(name: str | Path) -> Path | None:
    """The model folder that a path means: itself, or the best checkpoint of a run folder."""
    path = Path(name).expanduser()
    return next((each for each in (path, *(path / each for each in RUN_MODELS)) if model_kind(each)), None)
