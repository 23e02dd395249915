"""Attention over a tree of shared prefixes, and a faster way to compute it on a CPU.

torch's kernel for CPUs multiplies in float32 and computes what the causal mask throws away; its bfloat16 variant is slower still.
:class:`_TiledAttention` takes matrix products of tiles instead, with its own backward pass in bfloat16: about half the time for a
whole week of Rhythm, more where heads share keys. A GPU's kernels are fast without a dense mask, so there each branch of the tree is
computed by itself (:func:`_attend_branches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from gradus.policies.local.cpu.support import has_fast_bfloat16
from gradus.policies.local.cpu.tiled_attention import AttentionTile, gather, has_enough_queries, tile_weights, tiles
from gradus.training.data.microbatches import Tree

_MIN_CHUNKED = 256  # queries from which the kernel is given a suffix in chunks
_CHUNKS = 4  # they halve the triangle's waste; more cost as much as they save
_MIN_CHUNK, _LONG_CHUNK = 64, 256  # queries of a chunk of our own products, if there are few and if there are many
_MAX_KEPT_BYTES = 2**26  # bytes of attention weights that a layer may keep for its backward pass; more are made again


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    *,
    tree: Tree,
    source: Tensor | None = None,
    bf16_backward: bool,
) -> Tensor:
    """query (H, N, D), key and value (KH, N, D) in the order of a microbatch; returns (N, H, D).

    ``source`` (S,), ascending: the places that ask alone; query is then (H, S, D), and (S, H, D) is returned.
    ``bf16_backward``: the backward pass may multiply in bfloat16. Under autocast both passes do.
    """
    masked = _takes_masks(query.device)
    if source is not None and not (masked and _few(source, tree)):
        whole = query.new_zeros(query.shape[0], key.shape[1], query.shape[2])
        query = whole.index_copy(1, source, query)
        return attend(query, key, value, scaling, tree=tree, bf16_backward=bf16_backward).index_select(0, source)
    if not masked:
        return _attend_branches(query, key, value, scaling, tree)
    bf16_backward = (bf16_backward or torch.is_autocast_enabled("cpu")) and has_fast_bfloat16(query.device)
    with torch.autocast("cpu", enabled=False):
        if source is None:
            mixed = _attend_tree(query, key, value, scaling, tree, bf16_backward=bf16_backward)
        else:
            mixed = _attend_source(query, key, value, scaling, tree, source, bf16_backward=bf16_backward)
        return mixed.to(query.dtype)


def _takes_masks(device: torch.device) -> bool:
    """Says whether a dense mask costs little: on a GPU it keeps attention from the fast kernels, and takes their memory."""
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
        return _from_rows(_causal(q, k, v, scaling, bf16_backward=bf16_backward))
    sizes = [prefixes * longest_prefix, rows * longest]
    (q0, q1), (k0, k1), (v0, v1) = (part.split(sizes, dim=1) for part in (query, key, value))
    q0, k0, v0 = (_to_rows(part, prefixes, longest_prefix) for part in (q0, k0, v0))
    q1, k1, v1 = (_to_rows(part, rows, longest) for part in (q1, k1, v1))
    first = _causal(q0, k0, v0, scaling, bf16_backward=bf16_backward)
    k1 = torch.cat([_to_members(k0, tree), k1], dim=2)
    v1 = torch.cat([_to_members(v0, tree), v1], dim=2)
    assert tree.mask is not None
    ends = range(longest_prefix + 1, longest_prefix + longest + 1)
    seen = _Seen(tree.mask, ends, plain=len(set(tree.lengths)) == 1)
    second = _masked(q1, k1, v1, seen, scaling, bf16_backward=bf16_backward)
    return torch.cat([_from_rows(first.to(second.dtype)), _from_rows(second)], dim=0)


def _few(source: Tensor, tree: Tree) -> bool:
    """Says whether so few places ask that attention for them alone is worth gathering them; not for rows without a prefix."""
    return bool(tree.lengths) and 4 * len(source) <= 3 * tree.suffixes[0] * tree.suffixes[1]


def _attend_source(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    tree: Tree,
    source: Tensor,
    *,
    bf16_backward: bool,
) -> Tensor:
    """Attention where the places ``source`` alone ask: query (H, S, D), returns (S, H, D)."""
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    sizes = [prefixes * longest_prefix, rows * longest]
    (k0, k1), (v0, v1) = (part.split(sizes, dim=1) for part in (key, value))
    k0, v0 = (_to_rows(part, prefixes, longest_prefix) for part in (k0, v0))
    in_prefix = int((source < sizes[0]).sum())
    parts: list[Tensor] = []
    if in_prefix:
        asked = _Asked(source[:in_prefix], prefixes, longest_prefix)
        behind = torch.arange(longest_prefix, device=source.device) > asked.column[:, :, None]
        mask = torch.zeros(behind.shape, device=source.device).masked_fill_(behind, float("-inf"))[:, None]
        mixed = _kernel(asked.gather(query[:, :in_prefix]), k0, v0, mask, scaling)
        parts.append(asked.scatter(mixed))
    if in_prefix < len(source):
        asked = _Asked(source[in_prefix:] - sizes[0], rows, longest)
        assert tree.mask is not None
        number = torch.arange(rows, device=source.device)[:, None]
        mask = tree.mask.expand(rows, -1, -1, -1)[number, 0, asked.column][:, None]
        k1 = torch.cat([_to_members(k0, tree), _to_rows(k1, rows, longest)], dim=2)
        v1 = torch.cat([_to_members(v0, tree), _to_rows(v1, rows, longest)], dim=2)
        seen = _Seen(mask, [longest_prefix + 1 + last for last in asked.column.amax(0).tolist()])
        mixed = _masked(asked.gather(query[:, in_prefix:]), k1, v1, seen, scaling, bf16_backward=bf16_backward)
        parts.append(asked.scatter(mixed).to(parts[0].dtype if parts else mixed.dtype))
    return torch.cat(parts)


class _Asked:
    """Places of a rectangle of ``rows`` times ``length``, ascending, as a rectangle of their own: ``column`` (rows, M) says where in its
    row each is. M is how many the fullest row has; what other rows lack asks from their first place, and is thrown away."""

    def __init__(self, places: Tensor, rows: int, length: int) -> None:
        row = places // length
        counts = torch.bincount(row, minlength=rows)
        most = int(counts.max())
        within = torch.arange(len(places), device=places.device) - (counts.cumsum(0) - counts)[row]
        self._shape, self._places = (rows, most), row * most + within
        self.column = places.new_zeros(rows * most).index_copy(0, self._places, places % length).view(rows, most)

    def gather(self, query: Tensor) -> Tensor:
        """(H, S, D) to (rows, H, M, D)."""
        rows, most = self._shape
        padded = query.new_zeros(query.shape[0], rows * most, query.shape[2]).index_copy(1, self._places, query)
        return _to_rows(padded, rows, most)

    def scatter(self, mixed: Tensor) -> Tensor:
        """(rows, H, M, D) to (S, H, D)."""
        return _from_rows(mixed).index_select(0, self._places)


@dataclass(frozen=True)
class _Seen:
    """The keys that queries see. ``mask`` (B or 1, 1, S, T) is 0 or -inf, ``ends`` (S,) the key behind the last that each may see in any row.

    ``plain``: each query sees all keys before its end, one more than the query before it, in every row; tiles then need no mask.
    """

    mask: Tensor | None
    ends: Sequence[int]
    plain: bool = False

    def chunks(self, parts: int) -> list[tuple[int, int, int]]:
        """First query of each chunk, the one behind its last, and the key behind the last that any of them sees."""
        step = -(-len(self.ends) // parts)
        cuts = [(start, min(start + step, len(self.ends))) for start in range(0, len(self.ends), step)]
        return [(a, b, max(self.ends[a:b])) for a, b in cuts]

    def hidden(self, tile: AttentionTile) -> Tensor:
        """The mask of a tile, from the first key on that one of its queries does not see."""
        if self.plain:  # made anew: for a long row, a mask of all its keys would take more memory than all else
            count = tile.queries.stop - tile.queries.start
            return torch.full((1, 1, count, count - 1), float("-inf")).triu_()
        assert self.mask is not None
        return self.mask[tile.rows if len(self.mask) > 1 else slice(None), :, tile.queries, : tile.end]


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, *, bf16_backward: bool) -> Tensor:
    """Attention of (B, H, S, D) queries to (B, KH, S, D) keys, each to those up to its own."""
    if not (bf16_backward and has_enough_queries(query, key.shape[1])):
        return _kernel(query, key, value, None, scaling)
    return _tiled(query, key, value, _Seen(None, range(1, query.shape[2] + 1), plain=True), scaling)


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
    query: Tensor, key: Tensor, value: Tensor, seen: _Seen, scaling: float | None, *, bf16_backward: bool
) -> Tensor:
    """Attention of (B, H, S, D) queries to what they see of (B, KH, T, D) keys.

    Many queries are cut into chunks that are shown no key behind their own end.
    """
    if bf16_backward and has_enough_queries(query, key.shape[1]):
        return _tiled(query, key, value, seen, scaling)
    mask = seen.mask
    assert mask is not None
    parts = [
        _kernel(query[:, :, a:b], key[:, :, :end], value[:, :, :end], mask[:, :, a:b, :end], scaling)
        for a, b, end in seen.chunks(1 if query.shape[2] < _MIN_CHUNKED else _CHUNKS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _tiled(query: Tensor, key: Tensor, value: Tensor, seen: _Seen, scaling: float | None) -> Tensor:
    key, value = key.to(query.dtype), value.to(query.dtype)  # under autocast transformers rotates in float32
    return _TiledAttention.apply(query, key, value, seen, query.shape[3] ** -0.5 if scaling is None else scaling)


class _TiledAttention(torch.autograd.Function):
    """Attention by products of tiles.

    The forward pass multiplies in the dtype it is given, with the softmax in float32. The backward pass multiplies in bfloat16, on
    attention weights that were kept in it. Weights that would take too much memory are made again. The softmax's own backward pass is
    torch's, which computes in float32 what it reads and writes in bfloat16; its mean is that of the rounded gradients, so that what
    rounding does to all of them alike cancels.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, seen: _Seen, scaling: float) -> Tensor:
        (rows, heads, length, _), shared = query.shape, key.shape[1]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        parts = max(1, min(max(_CHUNKS, length // _LONG_CHUNK), length // _MIN_CHUNK))
        ctx.tiles = list(tiles(rows, heads, seen.chunks(parts)))
        keeps = 2 * rows * heads * length * key.shape[2] <= _MAX_KEPT_BYTES
        kept: list[Tensor] = []
        for tile in ctx.tiles:
            weights = tile_weights(tile.group(query, shared), tile.keys(key), seen.hidden(tile), heads, scaling)
            out[tile.rows, :, tile.queries] = gather(weights, tile.keys(value))
            if keeps:
                kept.append(weights.bfloat16())
        exact = () if keeps else (query, key)
        ctx.save_for_backward(query.bfloat16(), key.bfloat16(), value.bfloat16(), *exact, *kept)
        ctx.keeps, ctx.seen, ctx.scaling, ctx.dtype = keeps, seen, scaling, query.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, key, value, *others = ctx.saved_tensors
        heads, shared = query.shape[1], key.shape[1]
        grad16 = grad.bfloat16()
        query_grad = torch.empty(query.shape)
        # Gradients of keys and values lie transposed: the products want the attention weights, which are large, as they lie.
        key_grad, value_grad = (torch.zeros(part.mT.shape) for part in (key, value))
        for number, tile in enumerate(ctx.tiles):
            if ctx.keeps:
                weights = others[number]
            else:
                exact, exact_keys = tile.group(others[0], shared), tile.keys(others[1])
                weights = tile_weights(exact, exact_keys, ctx.seen.hidden(tile), heads, ctx.scaling).bfloat16()
            queries, row_grads = tile.group(query, shared), tile.group(grad16, shared)
            grouped_weights = weights.view(*queries.shape[:2], -1)
            weight_grad = torch.bmm(row_grads, tile.keys(value).mT)
            score_grad = torch.ops.aten._softmax_backward_data(weight_grad, grouped_weights, -1, torch.bfloat16)
            query_grad[tile.rows, :, tile.queries] = torch.bmm(score_grad, tile.keys(key)).view(*weights.shape[:3], -1)
            places = (tile.rows, slice(None), slice(None), slice(0, tile.end))
            for total, left, right in (
                (value_grad, row_grads, grouped_weights),
                (key_grad, queries, score_grad),
            ):
                total[places] += torch.bmm(left.mT.contiguous(), right).unflatten(0, (tile.count, shared))
        query_grad, key_grad = query_grad.mul_(ctx.scaling), key_grad.mul_(ctx.scaling)
        return *(part.to(ctx.dtype) for part in (query_grad, key_grad.mT, value_grad.mT)), None, None


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
