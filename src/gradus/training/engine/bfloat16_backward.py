"""Linear layers with a float32 forward and a bfloat16 backward pass.

The forward pass must be exact: its log-probs are compared with the sampler's, and the ratio of a policy gradient is made of
them. A gradient is an average over thousands of noisy tokens, and two thirds of the arithmetic; where a CPU multiplies bfloat16
several times as fast as float32 (AVX512-BF16, AMX), rounding its factors to eight bits costs little and saves much. Weights,
gradients and the optimizer stay in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from gradus.policies.local.float32_linear import FastLinear, LinearFunction, linear
from gradus.training.engine.gated_mlp import forward, gated_mlps


@contextmanager
def bfloat16_backward(model: nn.Module, *, enabled: bool = True) -> Iterator[None]:
    """Inside this context the products of the backward pass of all linear layers are taken in bfloat16; gated MLPs are one function each."""
    # Layers that compute in their own way (quantized ones, say) are left alone; FSDP's classes inherit the plain forward.
    plain = (nn.Linear.forward, FastLinear.forward)
    linear_layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers = [module for module in linear_layers if type(module).forward in plain] if enabled else []
    mlps = list(gated_mlps(model)) if enabled else []
    for layer in layers:
        layer.forward = partial(_forward, layer)
    for mlp in mlps:
        mlp.forward = partial(forward, mlp)
    try:
        yield
    finally:
        for module in (*layers, *mlps):
            del module.forward  # the class's own method shows again


def _forward(layer: nn.Linear, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or input.dtype != torch.float32:
        return linear(input, layer.weight, layer.bias)
    return LinearFunction.apply(input, layer.weight, layer.bias, torch.bfloat16)
