"""Attention over a tree of shared prefixes, and a faster way to compute it on a CPU.

torch's kernel for CPUs multiplies in float32 and computes what the causal mask throws away; its bfloat16 variant is slower still.
:class:`_ChunkedAttention` takes batched matrix products instead, one for each chunk of queries, with its own backward
pass in bfloat16: about half the time for a whole week of Rhythm, more where heads share keys. A GPU's kernels are fast without
a dense mask, so there each branch of the tree is computed by itself (:func:`_attend_branches`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from gradus.policies.local.bfloat16_support import has_fast_bfloat16
from gradus.training.data.microbatches import Tree

_MIN_CHUNKED = 256  # queries from which the kernel is given a suffix in chunks
_CHUNKS = 4  # they halve the triangle's waste; more cost as much as they save
_MIN_PRODUCTS = 64  # queries below which matrix products of our own do not pay
_CACHED = 2**18  # scores that are worked on at once: 1 MiB in float32
_MAX_KEPT_BYTES = 2**26  # bytes of attention weights that a layer may keep for its backward pass; the kernel keeps none


def attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, *, tree: Tree, bf16_backward: bool
) -> Tensor:
    """query (H, N, D), key and value (KH, N, D) in the order of a microbatch; returns (N, H, D).

    ``bf16_backward``: the backward pass may multiply in bfloat16. Under autocast both passes do.
    """
    if not _takes_masks(query.device):
        return _attend_branches(query, key, value, scaling, tree)
    bf16_backward = (bf16_backward or torch.is_autocast_enabled("cpu")) and has_fast_bfloat16(query.device)
    with torch.autocast("cpu", enabled=False):
        return _attend_tree(query, key, value, scaling, tree, bf16_backward=bf16_backward).to(query.dtype)


def _takes_masks(device: torch.device) -> bool:
    """Whether a dense mask costs little: on a GPU it keeps attention from the fast kernels, and takes their memory."""
    return device.type == "cpu"


def _attend_branches(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Tree) -> Tensor:
    """Attention without a dense mask: each prefix alone, and its members behind it, causal from the last key backwards."""
    if key.dtype != query.dtype or value.dtype != query.dtype:  # under autocast transformers rotates in float32
        query, key, value = (part.to(value.dtype) for part in (query, key, value))
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    sizes = [prefixes * longest_prefix, rows * longest]
    own = [_to_rows(part[:, sizes[0] :], rows, longest) for part in (query, key, value)]
    if not prefixes:
        return _from_rows(_lower_right(own[0], own[1], own[2], scaling))
    before = [_to_rows(part[:, : sizes[0]], prefixes, longest_prefix) for part in (query, key, value)]
    parts: list[Tensor] = []
    start = 0
    for number, (length, members) in enumerate(zip(tree.lengths, tree.members, strict=True)):
        query_part, key_part, value_part = (part[start : start + members] for part in own)
        prefix_key, prefix_value = (
            part[number, None, :, :length].expand(members, -1, -1, -1) for part in (before[1], before[2])
        )
        keys, values = torch.cat([prefix_key, key_part], dim=2), torch.cat([prefix_value, value_part], dim=2)
        parts.append(_lower_right(query_part, keys, values, scaling))
        start += members
    return torch.cat(
        [_from_rows(_lower_right(before[0], before[1], before[2], scaling)), _from_rows(torch.cat(parts))], dim=0
    )


def _lower_right(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """torch's kernel for (B, H, S, D) queries whose last one sees all of (B, KH, T, D), the one before it all but the last, ..."""
    shared = query.shape[1] != key.shape[1]
    if shared and query.dtype not in (torch.bfloat16, torch.float16):  # only flash attention knows shared heads
        key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
        shared = False
    if query.shape[2] == key.shape[2]:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shared)
    bias = causal_lower_right(query.shape[2], key.shape[2])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling, enable_gqa=shared)


def _attend_tree(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Tree, *, bf16_backward: bool
) -> Tensor:
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    if not prefixes:
        q, k, v = (_to_rows(part, rows, longest) for part in (query, key, value))
        return _from_rows(_causal(q, k, v, scaling))
    sizes = [prefixes * longest_prefix, rows * longest]
    (q0, q1), (k0, k1), (v0, v1) = (part.split(sizes, dim=1) for part in (query, key, value))
    q0, k0, v0 = (_to_rows(part, prefixes, longest_prefix) for part in (q0, k0, v0))
    q1, k1, v1 = (_to_rows(part, rows, longest) for part in (q1, k1, v1))
    first = _causal(q0, k0, v0, scaling)
    k1 = torch.cat([_to_members(k0, tree), k1], dim=2)
    v1 = torch.cat([_to_members(v0, tree), v1], dim=2)
    assert tree.mask is not None
    second = _masked(q1, k1, v1, tree.mask, longest_prefix, scaling, bf16_backward=bf16_backward)
    return torch.cat([_from_rows(first), _from_rows(second.to(first.dtype))], dim=0)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    return _kernel(query, key, value, None, scaling)


def _kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """torch's own. A CPU's takes three times as long in bfloat16 as in float32."""
    if query.device.type == "cpu":
        query, key, value = query.float(), key.float(), value.float()
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if mask is None else mask.to(query.dtype),
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _masked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, offset: int, scaling: float | None, *, bf16_backward: bool
) -> Tensor:
    """Attention of (B, H, S, D) queries to (B, KH, offset + S, D) keys, where query i sees at most offset + i + 1 of them.

    Long suffixes are cut into chunks of queries that are shown no key behind their own end.
    """
    rows, heads, length, size = query.shape
    weights = 2 * rows * heads * length * key.shape[2]
    if bf16_backward and length >= _MIN_PRODUCTS and weights <= _MAX_KEPT_BYTES:
        key, value = key.to(query.dtype), value.to(query.dtype)  # under autocast transformers rotates in float32
        return _ChunkedAttention.apply(query, key, value, mask, offset, size**-0.5 if scaling is None else scaling)
    parts = [
        _kernel(
            query[:, :, a:b], key[:, :, : offset + b], value[:, :, : offset + b], mask[:, :, a:b, : offset + b], scaling
        )
        for a, b in _chunks(length, 1 if length < _MIN_CHUNKED else _CHUNKS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _chunks(length: int, parts: int) -> list[tuple[int, int]]:
    step = -(-length // parts)
    return [(start, min(start + step, length)) for start in range(0, length, step)]


class _ChunkedAttention(torch.autograd.Function):
    """Attention by batched products, a chunk of queries at a time; heads that share keys stand in one product.

    The forward pass multiplies in the dtype it is given, with the softmax in float32. The backward pass multiplies in bfloat16, on
    attention weights that were kept in it, and subtracts in float32, where weights near 1 would else leave nothing.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, offset: int, scaling: float
    ) -> Tensor:
        (rows, heads, length, size), shared = query.shape, key.shape[1]
        keys, values = (part.reshape(rows * shared, -1, size) for part in (key, value))
        kept: list[Tensor] = []
        parts: list[Tensor] = []
        for a, b in _chunks(length, max(1, min(_CHUNKS, length // _MIN_PRODUCTS))):
            scores = torch.bmm(_group_heads(query, shared, a, b), keys[:, : offset + b].transpose(1, 2))
            scores = scores.view(rows, heads, b - a, -1)
            seen = mask[:, :, a:b, : offset + b].expand(rows, -1, -1, -1)
            weights = torch.empty_like(scores, dtype=query.dtype)
            weights16 = weights if query.dtype == torch.bfloat16 else torch.empty_like(scores, dtype=torch.bfloat16)
            for some in _in_cache(scores):
                part = torch.add(seen[some], scores[some], alpha=scaling).softmax(-1)
                weights[some] = part
                if weights16 is not weights:
                    weights16[some] = part
            mixed = torch.bmm(weights.view(rows * shared, -1, offset + b), values[:, : offset + b])
            parts.append(mixed.view(rows, heads, b - a, size))
            kept.append(weights16)
        out = torch.cat(parts, dim=2)
        ctx.save_for_backward(query.bfloat16(), keys.bfloat16(), values.bfloat16(), out, *kept)
        ctx.offset, ctx.scaling, ctx.dtype = offset, scaling, query.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, keys, values, out, *kept = ctx.saved_tensors
        (rows, heads, length, size), shared = query.shape, keys.shape[0] // query.shape[0]
        level = (grad.float() * out.float()).sum(-1, keepdim=True)
        grad16 = grad.bfloat16()
        query_grad: list[Tensor] = []
        # Gradients of keys and values lie transposed: the products want the attention weights, which are large, as they lie.
        keys_grad, values_grad = (torch.zeros(part.mT.shape, dtype=torch.float32) for part in (keys, values))
        for (a, b), weights in zip(_chunks(length, len(kept)), kept, strict=True):
            end = ctx.offset + b
            queries, row_grads = _group_heads(query, shared, a, b), _group_heads(grad16, shared, a, b)
            grouped_weights = weights.view(rows * shared, -1, end)
            values_grad[:, :, :end] += torch.bmm(row_grads.mT.contiguous(), grouped_weights)
            score_grad = torch.bmm(row_grads, values[:, :end].transpose(1, 2)).view(weights.shape)
            for some in _in_cache(weights):
                score_grad[some] = (score_grad[some] - level[some, :, a:b]).mul_(weights[some])
            score_grad = score_grad.view(grouped_weights.shape)
            query_grad.append(torch.bmm(score_grad, keys[:, :end]).view(rows, heads, b - a, size))
            keys_grad[:, :, :end] += torch.bmm(queries.mT.contiguous(), score_grad)
        scaled_query_grad = torch.cat(query_grad, dim=2).to(ctx.dtype).mul_(ctx.scaling)
        shape = (rows, shared, -1, size)
        key_grad, value_grad = keys_grad.mul_(ctx.scaling).mT.reshape(shape), values_grad.mT.reshape(shape)
        return scaled_query_grad, key_grad.to(ctx.dtype), value_grad.to(ctx.dtype), None, None, None


def _in_cache(scores: Tensor) -> list[slice]:
    """Rows of (B, H, S, T) that fit into a processor's cache together: what is done number by number then does not wait for memory."""
    rows = max(1, _CACHED * len(scores) // scores.numel())
    return [slice(start, start + rows) for start in range(0, len(scores), rows)]


def _group_heads(part: Tensor, shared: int, a: int, b: int) -> Tensor:
    """Queries a to b of (B, H, S, D), those of heads with the same keys one after another: (B * KH, H / KH * (b - a), D)."""
    return part[:, :, a:b].reshape(part.shape[0] * shared, -1, part.shape[3])


def _to_rows(part: Tensor, rows: int, length: int) -> Tensor:
    """(H, rows * length, D) to (rows, H, length, D), without a copy."""
    return part.unflatten(1, (rows, length)).transpose(0, 1)


def _from_rows(part: Tensor) -> Tensor:
    """(rows, H, length, D) to (rows * length, H, D)."""
    return part.transpose(1, 2).flatten(0, 1)


def _to_members(part: Tensor, tree: Tree) -> Tensor:
    """(P, H, Lp, D) to (B, H, Lp, D): every suffix sees its parent prefix; gradients of the members add up."""
    if tree.parent is not None:
        return part.index_select(0, tree.parent)
    members = tree.suffixes[0] // tree.prefixes[0]
    return part.unsqueeze(1).expand(-1, members, -1, -1, -1).flatten(0, 1)
