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
from typing import Any

import torch
from torch import Tensor, nn

from gradus.policies.local.float32_linear import FastLinear, linear, product


@contextmanager
def bfloat16_backward(model: nn.Module, *, enabled: bool = True) -> Iterator[None]:
    """Inside this context the products of the backward pass of all linear layers are taken in bfloat16."""
    # Layers that compute in their own way (quantized ones, say) are left alone; FSDP's classes inherit the plain forward.
    plain = (nn.Linear.forward, FastLinear.forward)
    linear_layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers = [module for module in linear_layers if type(module).forward in plain] if enabled else []
    for layer in layers:
        layer.forward = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own method shows again


def _forward(layer: nn.Linear, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or input.dtype != torch.float32:
        return linear(input, layer.weight, layer.bias)
    return _Linear.apply(input, layer.weight, layer.bias)


class _Linear(torch.autograd.Function):
    """y = x W^T + b. Keeps x in bfloat16, which is all that the backward pass reads of it: half the memory."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs.bfloat16() if weight.requires_grad else None, weight)
        ctx.has_bias = bias is not None
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        inputs, weight = ctx.saved_tensors
        grad16 = grad.bfloat16()
        inputs_grad = (grad16 @ weight.bfloat16()).float() if ctx.needs_input_grad[0] else None
        weight_grad = bias_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = (grad16.flatten(0, -2).T @ inputs.flatten(0, -2)).float()
        if ctx.has_bias and ctx.needs_input_grad[2]:
            bias_grad = grad.flatten(0, -2).sum(0)
        return inputs_grad, weight_grad, bias_grad
