"""Training: stored text to a primed model (SFT), played episodes to a better one (GRPO), and the run folder of both.

Names are imported when they are first used: a configuration can be read without waiting for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.training.batches import MicroBatch, microbatches
    from gradus.training.folder import RunFolder
    from gradus.training.grpo import GrpoResult, train_grpo
    from gradus.training.grpo_config import GrpoConfig
    from gradus.training.sequences import TrainingSequence, episode_sequences
    from gradus.training.sft import SftConfig, SftResult, train_sft
    from gradus.training.trainer import LoraConfig, TrainingError

_HOME = {
    "GrpoConfig": "grpo_config",
    "GrpoResult": "grpo",
    "LoraConfig": "trainer",
    "MicroBatch": "batches",
    "RunFolder": "folder",
    "SftConfig": "sft",
    "SftResult": "sft",
    "TrainingError": "trainer",
    "TrainingSequence": "sequences",
    "episode_sequences": "sequences",
    "microbatches": "batches",
    "train_grpo": "grpo",
    "train_sft": "sft",
}

__all__ = [
    "GrpoConfig",
    "GrpoResult",
    "LoraConfig",
    "MicroBatch",
    "RunFolder",
    "SftConfig",
    "SftResult",
    "TrainingError",
    "TrainingSequence",
    "episode_sequences",
    "microbatches",
    "train_grpo",
    "train_sft",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
