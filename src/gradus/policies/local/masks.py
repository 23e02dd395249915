"""Attention masks for rows at different places in their sequences, and a check that a model gives the same answer with our cache."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradus.policies.local.kv_cache import RaggedCache
from gradus.policies.local.loading import LoadedModel, evaluating

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to the largest logit; half precision: 0.1
_KNOWN_LAYERS = {"full_attention", "sliding_attention", "global"}


class MaskPlan:
    """The masks that a model wants: one for full attention, one for a sliding window, or both by layer type.

    ``cache_name``: what its forward calls the key-value cache. transformers has renamed it (5.24).
    """

    def __init__(self, *, window: int | None, by_layer: bool, keeps_last: bool, cache_name: str) -> None:
        self.window, self.by_layer, self.keeps_last, self.cache_name = window, by_layer, keeps_last, cache_name

    def cached(self, cache: Any) -> dict[str, Any]:
        """Returns what a forward pass over a key-value cache takes besides ids, mask and positions."""
        return {self.cache_name: cache, "use_cache": True, **({"logits_to_keep": 1} if self.keeps_last else {})}

    def masks(self, positions: Tensor, width: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Returns additive masks (n, 1, S, width) for queries at ``positions`` (n, S): a token sees its row up to itself."""
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


def plan_masks(model: Any) -> MaskPlan | None:
    """Reads from a model's config and signature how it wants masks; None if it cannot be driven with positions, masks and a cache of ours."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config(decoder=True)
    taken = inspect.signature(base.forward).parameters
    cache_name = "cache" if "cache" in taken else "past_key_values"
    kinds = set(getattr(config, "layer_types", None) or ())
    # GPT-Neo's local layers count their window from the end of the batch, which is another place in each row.
    own = kinds | set(getattr(config, "attention_layers", None) or ())
    if not {"input_ids", "attention_mask", "position_ids", cache_name} <= set(taken) or own - _KNOWN_LAYERS:
        return None
    if getattr(config, "_attn_implementation", "sdpa") not in ("sdpa", "eager"):
        return None
    window = getattr(config, "sliding_window", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    return MaskPlan(window=window, by_layer=bool(kinds), keeps_last="logits_to_keep" in taken, cache_name=cache_name)


def cache_plan(loaded: LoadedModel) -> MaskPlan | None:
    """Returns the masks for sampling over our own cache; None if the architecture gives other logits with it, or cannot take it."""
    plan = plan_masks(loaded.model)
    return plan if plan is not None and keeps_function(loaded, plan) else None


def keeps_function(loaded: LoadedModel, plan: MaskPlan) -> bool:
    """Says if the logits of eight tokens read at once, without a cache, are those of the same read in two pieces with one."""
    count = loaded.model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[(7 * i + 3) % count for i in range(8)]], device=loaded.device)
    with evaluating(replace(loaded, autocast=False)):
        plain = loaded.model(input_ids=ids, use_cache=False).logits[0, -1].float()
        cache = RaggedCache(1, 8)
        for start, stop in ((0, 5), (5, 8)):
            positions = torch.arange(start, stop, device=loaded.device)[None]
            cache.aim(positions, None, stop)
            cached = loaded.model(
                input_ids=ids[:, start:stop],
                attention_mask=plan.masks(positions, stop, loaded.dtype),
                position_ids=positions,
                **plan.cached(cache),
            ).logits[0, -1].float()  # fmt: skip
    gap = float((plain - cached).abs().max() / plain.abs().max().clamp(min=1.0))
    return gap <= _TOLERANCE.get(loaded.dtype, 0.1)
