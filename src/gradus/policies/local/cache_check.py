"""Does a model give the same answer with our cache as without? Asked once per model, before anything is sampled."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

import torch

from gradus.core import ConfigError
from gradus.policies.local.decoding import evaluating
from gradus.policies.local.kv_cache import RaggedCache
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.masks import MaskPlan, plan_masks

_CHECKED: WeakSet[torch.nn.Module] = WeakSet()
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to the largest logit; half precision: 0.1


def cache_plan(loaded: LoadedModel) -> MaskPlan | None:
    """The masks for sampling over our own cache; None if the architecture gives other logits with it, or cannot take it."""
    try:
        plan = plan_masks(loaded.model)
        check_cache(loaded, plan)
    except ConfigError:
        return None
    return plan


def check_cache(loaded: LoadedModel, plan: MaskPlan) -> None:
    """Compare the logits of eight tokens read at once, without a cache, with the same read in two pieces with one.

    Raises:
        ConfigError: they differ, so this architecture keeps its past in a way that the local sampler does not know.
    """
    if loaded.model in _CHECKED:
        return
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
    if not gap <= _TOLERANCE.get(loaded.dtype, 0.1):
        raise ConfigError(
            f"{type(loaded.model).__name__} gives other logits with a key-value cache than without (relative gap {gap:.2g}), "
            "so the local sampler cannot drive it; serve the model and use it as remote:NAME, or load it in float32"
        )
    _CHECKED.add(loaded.model)
