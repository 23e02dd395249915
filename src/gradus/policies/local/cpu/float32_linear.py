"""Linear layers in float32 by the faster of the two libraries that torch brings for a CPU.

torch multiplies float32 matrices with MKL, which does not use the 512 bit instructions of AMD's CPUs; oneDNN does, and takes half the
time. Both round alike: a product is a sum in float32 of exact products. Which of them computes follows
from the CPU alone, so that the same command gives the same numbers twice.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradus.policies.local.cpu import support

_LITTLE = 2**20  # multiplications below which starting oneDNN takes longer than MKL needs
_LARGE = 2**22  # multiplications of one product of a batch from which oneDNN is faster one by one than MKL for all


def prefers_onednn() -> bool:
    """Says if float32 matrices are multiplied by oneDNN here, because that is faster than MKL."""
    return support.FAST and _onednn_is_faster()


@cache
def _onednn_is_faster() -> bool:
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return wide and both and _made_by_amd() and _is_there()


def _is_there() -> bool:
    """Says if this torch has the operators that its compiler emits, in the form in which they are called here."""
    ones = torch.ones(16, 16)
    try:
        opened = _onednn(ones, ones, None, "swish")
        torch.ops.mkldnn._linear_pointwise.binary(ones, opened, ones, None, "mul")
    except (AttributeError, RuntimeError):
        return False
    return True


def _made_by_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (info.read_text() if info.exists() else platform.processor())


def use_faster_products(model: nn.Module) -> None:
    """Lets the plain float32 linear layers of a model multiply by the faster library."""
    if not prefers_onednn():
        return
    for layer in model.modules():
        # Subclasses compute something else, such as adapters or four bits.
        if type(layer) is nn.Linear and layer.weight.dtype == torch.float32:
            layer.__class__ = FastLinear


class FastLinear(nn.Linear):
    """``nn.Linear`` by :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, as ``F.linear``: inputs (..., I), weight (O, I), bias (O,); returns (..., O)."""
    if not _multiplies_here(inputs, weight):
        return F.linear(inputs, weight, bias)
    if torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad):
        return cast(Tensor, LinearFunction.apply(inputs, weight, bias, torch.float32))
    return _onednn(inputs, weight, bias)


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As :func:`linear`, without a gradient."""
    if not _multiplies_here(inputs, weight):
        return F.linear(inputs, weight, bias)
    return _onednn(inputs, weight, bias)


def gated_product(inputs: Tensor, gate: nn.Module, up: nn.Module) -> Tensor | None:
    """silu(gate(inputs)) * up(inputs) of two linear layers in two calls in place of four; None if oneDNN is not to compute them.

    For inference mode alone: a trainer that scores tokens without a gradient gets what its update will compute, bit for bit.
    """
    if type(gate) is not FastLinear or type(up) is not FastLinear:
        return None
    fast = _multiplies_here(inputs, gate.weight) and _multiplies_here(inputs, up.weight)
    if not fast or not torch.is_inference_mode_enabled():
        return None
    opened = _onednn(inputs, gate.weight, gate.bias, "swish")
    return torch.ops.mkldnn._linear_pointwise.binary(inputs, opened, up.weight, up.bias, "mul")


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, then, [], "")


def _multiplies_here(inputs: Tensor, weight: Tensor) -> bool:
    """Says if oneDNN takes a product: of plain float32 tensors on such a CPU, of enough work to pay."""
    return (
        prefers_onednn()
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.device.type == weight.device.type == "cpu"
        and inputs.numel() * weight.shape[-2] >= _LITTLE
        and not torch.is_autocast_enabled("cpu")
        and type(weight) in (Tensor, nn.Parameter)  # parts of a sharded weight have a class of their own
    )


class LinearFunction(torch.autograd.Function):
    """y = x W^T + b of float32 tensors, whose backward pass multiplies in ``dtype``. Of x it keeps what that pass reads."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(inputs.to(dtype) if weight.requires_grad else None, weight)
        ctx.has_bias = bias is not None
        ctx.dtype = dtype
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        inputs, weight = ctx.saved_tensors
        # A run may take its backward pass in bfloat16; the forward pass is always exact.
        narrow = grad.to(ctx.dtype)
        inputs_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            inputs_grad = product(narrow, weight.to(ctx.dtype).T).float()
        if ctx.needs_input_grad[1]:
            rows = narrow.flatten(0, -2)
            weight_grad = product(rows.T, inputs.flatten(0, -2).T).float()
        if ctx.has_bias and ctx.needs_input_grad[2]:
            bias_grad = grad.flatten(0, -2).sum(0)
        return inputs_grad, weight_grad, bias_grad, None


def products(rows: Tensor, columns: Tensor, factor: float = 1.0) -> Tensor:
    """Batched products: rows (B, M, K), columns (B, N, K); returns (B, M, N), times ``factor``. Without a gradient."""
    _, height, depth = rows.shape
    work = height * columns.shape[1] * depth
    if work >= _LARGE and _multiplies_here(rows, columns):
        if factor != 1.0:
            rows = rows * factor
        pairs = zip(rows, columns, strict=True)
        return torch.stack([product(row, column) for row, column in pairs])
    if factor == 1.0:
        return torch.bmm(rows, columns.mT)
    nothing = rows.new_empty(1, 1, 1)
    return torch.baddbmm(nothing, rows, columns.mT, beta=0.0, alpha=factor)
