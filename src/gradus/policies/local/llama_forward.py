"""The decoder of Llama and Qwen2, written for sampling and for training on what was sampled: transformers' function, with less of it.

Three things are left out. In the last layer only positions that predict a token ask and go on: the others give their keys and
values, and nothing reads what they would become. RMSNorm and the rotary embedding are one autograd
function each, where transformers' five or six tensor operations would each be kept for the backward pass. All parameters and
projections stay the modules of the model, adapters included. How to attend is the caller's: over a cache, or over a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from gradus.policies.local.cpu.float32_linear import gated_product

Attend = Callable[[int, Tensor, Tensor, Tensor, float, Tensor | None], Tensor]


def causal_model(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model inside a peft wrapper, or the model itself. Adapters stay in force."""
    unwrap = getattr(model, "get_base_model", None)
    return cast(PreTrainedModel, unwrap() if callable(unwrap) else model)


def has_lean_decoder(model: nn.Module) -> bool:
    """Says whether :func:`decode_positions` computes what a causal ``model`` computes.

    Not where the model is dealt out to several processes: weights are then gathered by hooks of the modules' own forward, and
    the class is one of FSDP's.
    """
    causal: Any = model
    return type(causal) in (LlamaForCausalLM, Qwen2ForCausalLM) and causal.config.hidden_act == "silu"


def decode_positions(model: Any, input_ids: Tensor, positions: Tensor, attend: Attend, source: Tensor) -> Tensor:
    """Logits (S, V) at the places ``source`` (S,), ascending, of one row; see :func:`decode_hidden`."""
    return model.lm_head(decode_hidden(model, input_ids, positions, attend, source))


def decode_hidden(model: Any, input_ids: Tensor, positions: Tensor, attend: Attend, source: Tensor) -> Tensor:
    """Hidden states (S, d) that the language-model head reads, at the places ``source`` (S,), ascending, of one row.

    ``input_ids`` and ``positions`` are (1, N). ``attend`` takes a layer's number, query (H, N, D), key and value (KH, N, D), the scale of
    the scores and None, and returns (N, H, D). In the last layer it is given ``source`` in place of None and the queries of those
    places alone, (H, S, D), and returns (S, H, D). If activations are to be checkpointed, each layer keeps its input alone.
    """
    decoder = model.model
    hidden = decoder.embed_tokens(input_ids)[0]
    cos, sin = (part[0][:, None].to(hidden.dtype) for part in decoder.rotary_emb(hidden[None], positions))
    sin = sin[..., : sin.shape[-1] // 2]  # its halves are equal
    last = len(decoder.layers) - 1 if len(source) < len(hidden) else None
    for number, layer in enumerate(decoder.layers):
        step = partial(_layer, layer, number, cos, sin, attend, source if number == last else None)
        if getattr(layer, "gradient_checkpointing", False) and torch.is_grad_enabled():
            hidden = checkpoint(step, hidden, use_reentrant=False)
        else:
            hidden = step(hidden)
    return _norm(decoder.norm, hidden)


def _layer(
    layer: Any, number: int, cos: Tensor, sin: Tensor, attend: Attend, source: Tensor | None, hidden: Tensor
) -> Tensor:
    """One layer; the places ``source`` alone ask and go on, or all if that is None."""
    inputs = _norm(layer.input_layernorm, hidden)
    mixed = _mix(layer.self_attn, number, inputs, cos, sin, attend, source)
    hidden = hidden if source is None else hidden.index_select(0, source)
    hidden = hidden + layer.self_attn.o_proj(mixed)
    return hidden + _mlp(layer.mlp, _norm(layer.post_attention_layernorm, hidden))


def _mlp(mlp: Any, inputs: Tensor) -> Tensor:
    opened = gated_product(inputs, mlp.gate_proj, mlp.up_proj)  # the activation is silu, see has_lean_decoder
    return mlp(inputs) if opened is None else mlp.down_proj(opened)


def _mix(
    attention: Any, number: int, inputs: Tensor, cos: Tensor, sin: Tensor, attend: Attend, source: Tensor | None
) -> Tensor:
    """Returns what attention gathers at the places that ask, (N or S, H * D), before its output projection."""

    def heads(projection: Any, inputs: Tensor) -> Tensor:
        return projection(inputs).unflatten(1, (-1, attention.head_dim))

    asking = [inputs, cos, sin]
    if source is not None:
        asking = [part.index_select(0, source) for part in asking]
    # In this order: gradients of the inputs are added in the reverse of it.
    query = _rotated(heads(attention.q_proj, asking[0]), asking[1], asking[2]).transpose(0, 1)
    key = _rotated(heads(attention.k_proj, inputs), cos, sin).transpose(0, 1)
    value = heads(attention.v_proj, inputs).transpose(0, 1)
    return attend(number, query, key, value, attention.scaling, source).flatten(1)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    # A function of autograd takes as long to call as this takes for one token of some rows.
    if torch.is_inference_mode_enabled():
        return _scaled(hidden, module.weight, module.variance_epsilon)[0]
    return _RmsNorm.apply(hidden, module.weight, module.variance_epsilon)


def _scaled(inputs: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of (N, d), and what each row was multiplied with."""
    wide = inputs.float() if inputs.dtype in (torch.bfloat16, torch.float16) else inputs
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return weight * (wide * scale).to(inputs.dtype), scale


class _RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of (N, d), in float32 at least. arXiv 1910.07467."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, scale = _scaled(inputs, weight, eps)
        ctx.save_for_backward(inputs, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        inputs, weight, scale = ctx.saved_tensors
        unit = inputs.to(scale.dtype) * scale
        wide = grads[0].to(scale.dtype)
        product = wide * unit
        weight_grad = product.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        along = (product @ weight.to(scale.dtype)).unsqueeze(-1) / inputs.shape[-1]
        inner = torch.addcmul(wide * weight, unit, along, value=-1.0)
        return inner.mul_(scale).to(inputs.dtype), weight_grad, None


def _rotated(inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _rotate(inputs, cos, sin) if torch.is_inference_mode_enabled() else _Rotate.apply(inputs, cos, sin)


class _Rotate(torch.autograd.Function):
    """Rotary embedding of (N, H, D) by cos (N, 1, D) and half of sin (N, 1, D / 2), halves rotated against each other. arXiv 2104.09864."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(inputs, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grads[0], cos, -sin), None, None


def _rotate(inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = inputs.shape[-1] // 2
    # Under autocast what a layer projects is narrower than what it read.
    cos, sin = cos.to(inputs.dtype), sin.to(inputs.dtype)
    out = inputs * cos
    out[..., :half].addcmul_(inputs[..., half:], sin, value=-1.0)
    out[..., half:].addcmul_(inputs[..., :half], sin)
    return out
