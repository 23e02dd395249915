"""Does a model hand the options of its forward pass on to a registered attention function? Most do."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

_NAME = "gradus_reach"


class _Reached(Exception):
    """Attention was called; the argument says whether what the model was given came with the call."""


def _reach(*_: Any, tree: object = None, **__: Any) -> tuple[Tensor, None]:
    raise _Reached(tree is not None)


_HAND_ON: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def hands_options_on(causal: Any) -> bool:
    """Whether layers hand what they are given on to attention; Nemotron's drop it. Tried once, up to the first attention.

    Taken for granted of a model that is sharded: its weights are gathered by a forward that runs to its end.
    """
    if any(hasattr(parameter, "full_tensor") for parameter in causal.parameters()):
        return True
    if causal not in _HAND_ON:
        before = causal.config._attn_implementation
        causal.config._attn_implementation = _NAME
        try:
            with torch.no_grad():
                causal(input_ids=torch.tensor([[0, 1]], device=causal.device), use_cache=False, tree=True)
            _HAND_ON[causal] = False
        except _Reached as reached:
            _HAND_ON[causal] = bool(reached.args[0])
        finally:
            causal.config._attn_implementation = before
    return _HAND_ON[causal]


AttentionInterface.register(_NAME, _reach)
