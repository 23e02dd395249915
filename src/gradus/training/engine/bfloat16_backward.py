"""Linear layers with a float32 forward and a bfloat16 backward pass.

The forward pass must be exact: its log-probs are compared with the sampler's, and the ratio of a policy gradient is made of
them. A gradient is an average over thousands of noisy tokens, and two thirds of the arithmetic; where a CPU multiplies bfloat16
several times as fast as float32 (AVX512-BF16, AMX), rounding its factors to eight bits costs little and saves much. Weights,
gradients and the optimizer stay in float32.

The gated MLP of a decoder layer, down(silu(gate(x)) * up(x)), as one autograd function for training on a CPU.

Between its three products stand arrays several times as wide as the model. torch's operations write each of them to memory and read it
again, five times in all; here some rows at a time pass through all operations while they stand in the processor's cache. What the
backward pass needs is kept in bfloat16: what the last product read, and what its gradient is multiplied with on the way to the other two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradus.policies.local.cpu.float32_linear import FastLinear, LinearFunction, linear, product


@contextmanager
def bfloat16_backward(model: nn.Module, *, enabled: bool = True) -> Generator[None]:
    """Inside this context the products of the backward pass of all linear layers are taken in bfloat16; gated MLPs are one function each."""
    # Layers that compute in their own way (quantized ones, say) are left alone; FSDP's classes inherit the plain forward.
    plain = (nn.Linear.forward, FastLinear.forward)
    linear_layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layers = [module for module in linear_layers if type(module).forward in plain] if enabled else []
    mlps = list(gated_mlps(model)) if enabled else []
    for layer in layers:
        layer.forward = partial(_linear_forward, layer)
    for mlp in mlps:
        mlp.forward = partial(_gated_forward, mlp)
    try:
        yield
    finally:
        for module in (*layers, *mlps):
            del module.forward  # the class's own method shows again


def _linear_forward(layer: nn.Linear, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or input.dtype != torch.float32:
        return linear(input, layer.weight, layer.bias)
    return cast(Tensor, LinearFunction.apply(input, layer.weight, layer.bias, torch.bfloat16))


_VALUES = 3 * 2**17  # of one array of a part: 1.5 MiB in float32
_MIN_ROWS = 256  # of a part; products of fewer rows wait for the weights
_TRIED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def gated_mlps(model: nn.Module) -> Iterator[nn.Module]:
    """Modules of a model that compute what :class:`_GatedMlp` computes, of plain linear layers in float32 on a CPU."""
    for module in model.modules():
        layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        if all(map(_is_plain, layers)) and _computes_this(module):
            yield module


def _is_plain(layer: Any) -> bool:
    if type(layer) not in (nn.Linear, FastLinear) or layer.bias is not None or _is_watched(layer):
        return False
    weight = layer.weight
    # Parts of a sharded weight have a class of their own.
    return type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu"


def _is_watched(layer: nn.Module) -> bool:
    """Says whether something wants to see each call of a layer; it would see none."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name) for name in hooks)


@torch.no_grad()
def _computes_this(mlp: Any) -> bool:
    """Says whether a module is the plain gated MLP: tried once on three rows of numbers."""
    if mlp not in _TRIED:
        inputs = torch.linspace(-1.0, 1.0, 3 * mlp.gate_proj.in_features).view(3, -1)
        try:
            opened = F.silu(mlp.gate_proj(inputs)) * mlp.up_proj(inputs)
            _TRIED[mlp] = torch.equal(_plain_forward(mlp, inputs), mlp.down_proj(opened))
        except (TypeError, ValueError, RuntimeError):  # takes more than one argument, or another shape
            _TRIED[mlp] = False
    return _TRIED[mlp]


def _gated_forward(mlp: Any, inputs: Tensor) -> Tensor:
    """Computes ``mlp`` of (..., d). The backward pass multiplies in bfloat16. Under autocast it gains nothing, so torch computes there."""
    if inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return _plain_forward(mlp, inputs)
    weights = (mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
    return cast(Tensor, _GatedMlp.apply(inputs.flatten(0, -2), *weights)).view(inputs.shape)


def _plain_forward(mlp: nn.Module, inputs: Tensor) -> Tensor:
    """The forward pass of the module's class."""
    forward: Callable[[nn.Module, Tensor], Tensor] = type(mlp).forward
    return forward(mlp, inputs)


class _GatedMlp(torch.autograd.Function):
    """(N, d), gate and up (I, d), down (d, I), all in float32; returns (N, d)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Tensor:
        out = torch.empty_like(inputs)
        opened, *factors = inputs.new_empty(3, len(inputs), len(gate), dtype=torch.bfloat16)
        for rows in _parts(*opened.shape):
            gated, raised = product(inputs[rows], gate), product(inputs[rows], up)
            factors[0][rows] = torch.ops.aten.silu_backward(raised, gated)
            factor = F.silu(gated, inplace=True)
            factors[1][rows] = factor
            both = raised.mul_(factor)
            opened[rows] = both
            out[rows] = product(both, down)
        ctx.save_for_backward(inputs.bfloat16(), gate, up, down, opened, *factors)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gate, up, down, opened, *factors = ctx.saved_tensors
        grad = grads[0].bfloat16()
        gate, up, down = (weight.bfloat16().T for weight in (gate, up, down))
        gate_grad, up_grad = torch.empty_like(opened), torch.empty_like(opened)
        inputs_grad = torch.empty(inputs.shape)
        for rows in _parts(*opened.shape):
            wide = product(grad[rows], down).float()
            gate_grad[rows] = factors[0][rows].float().mul_(wide)
            up_grad[rows] = wide.mul_(factors[1][rows].float())
            inputs_grad[rows] = product(gate_grad[rows], gate).float().add_(product(up_grad[rows], up))
        pairs = ((gate_grad, inputs), (up_grad, inputs), (grad, opened))
        weight_grads: list[Tensor | None] = []
        for (out_grad, factor), needed in zip(pairs, ctx.needs_input_grad[1:], strict=True):
            weight_grads.append(product(out_grad.T, factor.T).float() if needed else None)
        return inputs_grad, *weight_grads


def _parts(rows: int, width: int) -> list[slice]:
    step = max(_MIN_ROWS, _VALUES // width)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
