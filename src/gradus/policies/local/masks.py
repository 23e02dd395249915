"""Attention masks and positions for rows that stand at different places in their own sequences."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from gradus.core import ConfigError

_KNOWN_LAYERS = {"full_attention", "sliding_attention", "global"}


class MaskPlan:
    """Which masks a model wants: one for full attention, one for a sliding window, or both by layer type.

    ``cache_name``: what its forward calls the key-value cache. transformers has renamed it (5.24).
    """

    def __init__(self, *, window: int | None, by_layer: bool, keeps_last: bool, cache_name: str) -> None:
        self.window, self.by_layer, self.keeps_last, self.cache_name = window, by_layer, keeps_last, cache_name

    def cached(self, cache: Any) -> dict[str, Any]:
        """What a forward pass over a key-value cache takes besides ids, mask and positions."""
        return {self.cache_name: cache, "use_cache": True, **({"logits_to_keep": 1} if self.keeps_last else {})}

    def masks(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Additive masks (n, 1, S, width) for queries at ``positions`` (n, S): a token sees its row up to itself."""
        keys = torch.arange(width, device=positions.device)
        own = positions[:, None, :, None]
        full = keys <= own
        if self.window is None:
            return _additive(full, dtype)
        sliding = _additive(full & (keys > own - self.window), dtype)
        return {"full_attention": _additive(full, dtype), "sliding_attention": sliding} if self.by_layer else sliding


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    # Added once here: attention would else turn a boolean mask into numbers again in every layer.
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def plan_masks(model: Any) -> MaskPlan:
    """Read from a model's config and signature how it wants masks.

    Raises:
        ConfigError: the architecture cannot be driven with explicit positions, masks and a key-value cache.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config(decoder=True)
    taken = inspect.signature(base.forward).parameters
    cache_name = "cache" if "cache" in taken else "past_key_values"
    missing = {"input_ids", "attention_mask", "position_ids", cache_name} - set(taken)
    kinds = set(getattr(config, "layer_types", None) or ())
    # GPT-Neo's local layers count their window from the end of the batch, which is another place in each row.
    own = kinds | set(getattr(config, "attention_layers", None) or ())
    attention = getattr(config, "_attn_implementation", "sdpa")
    if missing or own - _KNOWN_LAYERS:
        what = f"takes no {', '.join(sorted(missing))}" if missing else f"has layers of {sorted(own - _KNOWN_LAYERS)}"
        raise ConfigError(
            f"{type(base).__name__} {what}, which the local sampler does not support; "
            "serve the model (vLLM and others) and use it as remote:NAME"
        )
    if attention not in ("sdpa", "eager"):
        raise ConfigError(
            f"the local sampler needs attention sdpa or eager, got {attention!r}; load the model with either"
        )
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    return MaskPlan(window=window, by_layer=bool(kinds), keeps_last="logits_to_keep" in taken, cache_name=cache_name)
