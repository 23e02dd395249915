"""Attention by tree for models of Hugging Face's: a function registered with transformers, and which models can use it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from gradus.policies.local.llama_forward import causal_model
from gradus.training.data.microbatches import Tree
from gradus.training.engine.tree_attention import attend

TREE = "gradus_tree"
TREE_BF16 = "gradus_tree_bfloat16"  # its backward pass in bfloat16
_DROPS_TREE = "nemotron"  # its layers do not hand on to attention what they are given


def supports_tree(model: nn.Module) -> bool:
    """Says whether the model takes registered attention functions and looks at its whole past in every layer."""
    causal: Any = causal_model(model)
    config = causal.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    # Mistral and others name no layer types: a window, if there is one, is that of every layer.
    windowed = not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None)
    softcap = getattr(config, "attn_logit_softcapping", None)
    whole_past = set(layers) == {"full_attention"} and not windowed
    attends = bool(causal._supports_attention_backend) and not causal._is_stateful  # states run along the row
    return attends and whole_past and softcap is None and causal.config.model_type != _DROPS_TREE


@contextmanager
def tree_attention(model: nn.Module, *, bf16_backward: bool = False) -> Generator[None]:
    """Let the model attend by tree; ``bf16_backward``: with a backward pass in bfloat16. Holds the backward pass too, where checkpointed
    layers run again.

    Does nothing for a model that does not support it.
    """
    causal: Any = causal_model(model)
    if not supports_tree(model):
        yield
        return
    before = causal.config._attn_implementation
    causal.config._attn_implementation = TREE_BF16 if bf16_backward else TREE
    try:
        yield
    finally:
        causal.config._attn_implementation = before


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    tree: Tree | None = None,
    bf16_backward: bool,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over a tree. query (1, H, N, D), key and value (1, KH, N, D); returns (1, N, H, D)."""
    if tree is None:
        raise ValueError(
            f"the layers of {type(module).__name__} do not hand the tree on to attention, so they cannot be trained here"
        )
    mixed = attend(query[0], key[0], value[0], scaling, tree=tree, bf16_backward=bf16_backward)
    return mixed.unsqueeze(0), None


AttentionInterface.register(TREE, partial(_attend, bf16_backward=False))
AttentionInterface.register(TREE_BF16, partial(_attend, bf16_backward=True))
