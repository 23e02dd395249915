"""Settings for a pretrained language model, by its size: what is adapted, at what rate, and in what pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADAPTED_FROM = 300_000_000  # parameters from which adapters are trained, not all weights
_SMALL = 50_000_000


def by_size(parameters: int | None) -> dict[str, Mapping[str, Any]]:
    """Settings of ``sft`` and ``grpo`` for a pretrained model of so many parameters; None for a size that is not known.

    Rates are those that published recipes use: about 1e-4 and 1e-5 for adapters, 2e-5 and 1e-6 for all weights. A model below 50
    million parameters bears fifty times that: 216 steps of SFT at 2e-4 left one of 13 million at 0.28 nats, at 1e-3 at 0.10.
    It also needs more than one pass over a few hundred taught episodes: after 25 steps it stood at about 1 nat.
    """
    if parameters is None or parameters >= ADAPTED_FROM:
        shared: dict[str, Any] = {
            "lora": {"rank": 16, "alpha": 32},
            "gradient_checkpointing": True,
            "token_budget": 2048,
        }
        return {"sft": {**shared, "lr": 1e-4}, "grpo": {**shared, "lr": 1e-5}}
    if parameters >= _SMALL:
        return {"sft": {"lr": 2e-5, "token_budget": 4096}, "grpo": {"lr": 1e-6, "token_budget": 4096}}
    return {"sft": {"lr": 1e-3, "epochs": 6, "token_budget": 4096}, "grpo": {"lr": 5e-5, "token_budget": 4096}}
