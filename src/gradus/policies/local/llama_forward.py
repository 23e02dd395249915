"""The decoder of Llama and Qwen2, written for sampling and for training on what was sampled: transformers' function, with less of it.

Three things are left out. In the last layer only positions that predict a token ask and go on: the others give their keys and
values, and nothing reads what they would become. RMSNorm and the rotary embedding are one autograd
function each, where transformers' five or six tensor operations would each be kept for the backward pass. All parameters and
projections stay the modules of the model, adapters included. How to attend is the caller's: over a cache, or over a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from gradus.policies.local.cpu.float32_linear import gated_product

Attend = Callable[[int, Tensor, Tensor, Tensor, float, Tensor | None], Tensor]


def causal_model(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model inside a peft wrapper, or the model itself. Adapters stay in force."""
    unwrap = getattr(model, "get_base_model", None)
    return cast(PreTrainedModel, unwrap() if callable(unwrap) else model)


def has_lean_decoder(model: nn.Module) -> bool:
    """Says whether :func:`decode_hidden` computes what a causal ``model`` computes.

    Not where the model is dealt out to several processes: weights are then gathered by hooks of the modules' own forward, and
    the class is one of FSDP's.
    """
    causal: Any = model
    if type(causal) not in (LlamaForCausalLM, Qwen2ForCausalLM):
        return False
    return causal.config.hidden_act == "silu"


def decode_hidden(
    model: Any,
    input_ids: Tensor,
    positions: Tensor,
    attend: Attend,
    source: Tensor,
) -> Tensor:
    """Hidden states (S, d) that the language-model head reads, at the places ``source`` (S,), ascending, of one row.

    ``input_ids`` and ``positions`` are (1, N). ``attend`` takes a layer's number, query (H, N, D), key and value (KH, N, D), the scale of
    the scores and None, and returns (N, H, D). In the last layer it is given ``source`` in place of None and the queries of those
    places alone, (H, S, D), and returns (S, H, D). If activations are to be checkpointed, each layer keeps its input alone.
    """
    decoder = model.model
    hidden: Tensor = decoder.embed_tokens(input_ids)[0]
    cos, sin = decoder.rotary_emb(hidden[None], positions)
    cos = cos[0][:, None].to(hidden.dtype)
    sin = sin[0][:, None].to(hidden.dtype)
    half = sin.shape[-1] // 2
    everywhere = _Attention(attend=attend, cos=cos, sin=sin[..., :half], source=None)  # the halves of sin are equal
    # Nobody reads what else the last layer would compute.
    last = everywhere if len(source) == len(hidden) else everywhere._replace(source=source)
    for number, layer in enumerate(decoder.layers):
        attention = last if number == len(decoder.layers) - 1 else everywhere
        # transformers sets this flag when a run asks for checkpoints of activations.
        if getattr(layer, "gradient_checkpointing", False) and torch.is_grad_enabled():
            hidden = cast(Tensor, checkpoint(_layer, layer, number, attention, hidden, use_reentrant=False))
        else:
            hidden = _layer(layer, number, attention, hidden)
    return _norm(decoder.norm, hidden)


class _Attention(NamedTuple):
    """How the layers attend. A tuple, because one is made for each token."""

    attend: Attend
    # Rotary embedding of the places, (N, 1, D) and (N, 1, D / 2).
    cos: Tensor
    sin: Tensor
    # The places (S,) that ask and go on; None for all.
    source: Tensor | None

    def at_source(self, part: Tensor) -> Tensor:
        """The rows of (N, ...) that ask and go on."""
        return part if self.source is None else part.index_select(0, self.source)


def _layer(layer: Any, number: int, attention: _Attention, hidden: Tensor) -> Tensor:
    """One layer over hidden states (N, d); returns (N or S, d)."""
    inputs = _norm(layer.input_layernorm, hidden)
    mixed = _mix(layer.self_attn, number, attention, inputs)
    # From here on only the places that ask go on.
    hidden = attention.at_source(hidden) + layer.self_attn.o_proj(mixed)
    return hidden + _mlp(layer.mlp, _norm(layer.post_attention_layernorm, hidden))


def _mlp(mlp: Any, inputs: Tensor) -> Tensor:
    opened = gated_product(inputs, mlp.gate_proj, mlp.up_proj)  # the activation is silu, see has_lean_decoder
    return mlp(inputs) if opened is None else mlp.down_proj(opened)


def _mix(module: Any, number: int, attention: _Attention, inputs: Tensor) -> Tensor:
    """Returns what attention gathers at the places that ask, (N or S, H * D), before its output projection."""

    def heads(projection: Any, inputs: Tensor) -> Tensor:
        return projection(inputs).unflatten(1, (-1, module.head_dim))

    cos = attention.cos
    sin = attention.sin
    # In the last layer only some places ask, but all are looked at.
    narrow = attention.at_source
    # Query, key, value in this order: gradients of the inputs are added in the reverse of it.
    query = _rotated(heads(module.q_proj, narrow(inputs)), narrow(cos), narrow(sin))
    key = _rotated(heads(module.k_proj, inputs), cos, sin)
    value = heads(module.v_proj, inputs)
    query = query.transpose(0, 1)
    key = key.transpose(0, 1)
    value = value.transpose(0, 1)
    mixed = attention.attend(number, query, key, value, module.scaling, attention.source)
    return mixed.flatten(1)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    # A function of autograd takes as long to call as this takes for one token of some rows.
    if torch.is_inference_mode_enabled():
        return _scaled(hidden, module.weight, module.variance_epsilon)[0]
    return cast(Tensor, _RmsNorm.apply(hidden, module.weight, module.variance_epsilon))


def _scaled(inputs: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of (N, d), and what each row was multiplied with."""
    narrow = inputs.dtype in (torch.bfloat16, torch.float16)
    wide = inputs.float() if narrow else inputs
    mean_square = wide.square().mean(-1, keepdim=True)
    scale = (mean_square + eps).rsqrt()
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
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = product.sum(0).to(weight.dtype)
        along = product @ weight.to(scale.dtype)
        along = along.unsqueeze(-1) / inputs.shape[-1]
        inner = torch.addcmul(wide * weight, unit, along, value=-1.0)
        return inner.mul_(scale).to(inputs.dtype), weight_grad, None


def _rotated(inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if torch.is_inference_mode_enabled():
        return _rotate(inputs, cos, sin)
    return cast(Tensor, _Rotate.apply(inputs, cos, sin))


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
    first = inputs[..., :half]
    second = inputs[..., half:]
    # Under autocast what a layer projects is narrower than what it read.
    out = inputs * cos.to(inputs.dtype)
    sin = sin.to(inputs.dtype)
    out[..., :half].addcmul_(second, sin, value=-1.0)
    out[..., half:].addcmul_(first, sin)
    return out
