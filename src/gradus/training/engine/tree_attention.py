"""Attention over a tree of shared prefixes, and a faster way to compute it on a CPU.

torch's kernel for CPUs multiplies in float32 and computes what the causal mask throws away; its bfloat16 variant is slower still.
:class:`_TiledAttention` takes matrix products of tiles instead, with its own backward pass in bfloat16: about half the time for a
whole week of Rhythm, more where heads share keys. A GPU's kernels are fast without a dense mask, so there each branch of the tree is
computed by itself (:func:`_attend_branches`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import bias as attention_bias

from gradus.policies.local.cpu.support import has_fast_bfloat16
from gradus.policies.local.cpu.tiled_attention import AttentionTile, gather, has_enough_queries, tile_weights, tiles
from gradus.training.data.microbatches import Tree
from gradus.training.data.sequences import ints, split

_MIN_CHUNKED = 256  # queries from which the kernel is given a suffix in chunks
_CHUNKS = 4  # they halve the triangle's waste; more cost as much as they save
_MIN_CHUNK = 64  # queries of a chunk of our own products, if there are few
_LONG_CHUNK = 256  # the same, if there are many
_MAX_KEPT_BYTES = 2**26  # bytes of attention weights that a layer may keep for its backward pass; more are made again


class _Parts(NamedTuple):
    """What attention mixes: query (H, N, D), key and value (KH, N, D), or rows of them."""

    query: Tensor
    key: Tensor
    value: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> _Parts:
        """The three, changed in the same way."""
        return _Parts(change(self.query), change(self.key), change(self.value))

    def rows(self, rows: int, length: int) -> _Parts:
        """(H, rows * length, D) to (rows, H, length, D)."""
        return self.each(lambda part: _to_rows(part, rows, length))

    def behind(self, key: Tensor, value: Tensor) -> _Parts:
        """Suffixes (B, H, Ls, D) whose keys and values begin with those of their prefixes (B, KH, Lp, D)."""
        return _Parts(self.query, torch.cat([key, self.key], dim=2), torch.cat([value, self.value], dim=2))

    def behind_prefixes(self, prefix: _Parts, tree: Tree) -> _Parts:
        """The same of the prefixes (P, KH, Lp, D) of a tree."""
        return self.behind(_to_members(prefix.key, tree), _to_members(prefix.value, tree))


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
        # All places ask, most of them with zeros, and what these get is thrown away.
        everywhere = query.new_zeros(query.shape[0], key.shape[1], query.shape[2])
        everywhere = everywhere.index_copy(1, source, query)
        mixed = attend(everywhere, key, value, scaling, tree=tree, bf16_backward=bf16_backward)
        return mixed.index_select(0, source)
    parts = _Parts(query, key, value)
    if not masked:
        return _attend_branches(parts, scaling, tree)
    bf16_backward = bf16_backward or torch.is_autocast_enabled("cpu")
    products = _Products(scaling, bf16_backward and has_fast_bfloat16(query.device))
    with torch.autocast("cpu", enabled=False):
        if source is None:
            mixed = _attend_tree(parts, products, tree)
        else:
            mixed = _attend_source(parts, products, tree, source)
        return mixed.to(query.dtype)


def _takes_masks(device: torch.device) -> bool:
    """Says whether a dense mask costs little: on a GPU it keeps attention from the fast kernels, and takes their memory."""
    return device.type == "cpu"


def _split(part: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """The rectangles of prefixes (P, H, Lp, D) and of suffixes (B, H, Ls, D) in (H, N, D)."""
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    end = prefixes * longest_prefix
    prefix, suffix = split(part, [end, rows * longest], dim=1)
    return _to_rows(prefix, prefixes, longest_prefix), _to_rows(suffix, rows, longest)


def _split_all(parts: _Parts, tree: Tree) -> tuple[_Parts, _Parts]:
    prefix, suffix = zip(*(_split(part, tree) for part in parts), strict=True)
    return _Parts(*prefix), _Parts(*suffix)


def _attend_branches(parts: _Parts, scaling: float | None, tree: Tree) -> Tensor:
    """Attention without a dense mask: each prefix alone, and its members behind it, causal from the last key backwards."""
    query, key, value = parts
    if key.dtype != query.dtype or value.dtype != query.dtype:  # under autocast transformers rotates in float32
        parts = parts.each(lambda part: part.to(value.dtype))
    if not tree.lengths:
        return _from_rows(_lower_right(parts.rows(*tree.suffixes), scaling))
    prefix, suffix = _split_all(parts, tree)
    mixed: list[Tensor] = []
    start = 0
    for number, (length, members) in enumerate(zip(tree.lengths, tree.members, strict=True)):
        rows = slice(start, start + members)
        shared = [part[number, None, :, :length].expand(members, -1, -1, -1) for part in (prefix.key, prefix.value)]
        branch = _Parts(*(part[rows] for part in suffix))
        mixed.append(_lower_right(branch.behind(*shared), scaling))
        start += members
    return torch.cat([_from_rows(_lower_right(prefix, scaling)), _from_rows(torch.cat(mixed))], dim=0)


def _lower_right(parts: _Parts, scaling: float | None) -> Tensor:
    """torch's kernel for (B, H, S, D) queries whose last one sees all of (B, KH, T, D), the one before it all but the last, ..."""
    query, key, value = parts
    repeats = query.shape[1] // key.shape[1]
    # Only flash attention knows shared heads, and it takes 16 bits alone.
    if repeats > 1 and query.dtype not in (torch.bfloat16, torch.float16):
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
    bias: Tensor | None = None
    if query.shape[2] != key.shape[2]:
        # A dense mask would keep attention from the fast kernels; they know this kind.
        bias = cast(Any, attention_bias).causal_lower_right(query.shape[2], key.shape[2])
    return _kernel(_Parts(query, key, value), bias, scaling)


def _kernel(parts: _Parts, mask: Tensor | None, scaling: float | None) -> Tensor:
    """torch's own; causal without a mask."""
    query, key, value = parts
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attend_tree(parts: _Parts, products: _Products, tree: Tree) -> Tensor:
    if not tree.lengths:
        return _from_rows(products.causal(parts.rows(*tree.suffixes)))
    prefix, suffix = _split_all(parts, tree)
    first = products.causal(prefix)
    longest_prefix, longest = tree.prefixes[1], tree.suffixes[1]
    ends = range(longest_prefix + 1, longest_prefix + longest + 1)
    visible = VisibleKeys(tree.mask, ends, plain=len(set(tree.lengths)) == 1)
    second = products.masked(suffix.behind_prefixes(prefix, tree), visible)
    return torch.cat([_from_rows(first.to(second.dtype)), _from_rows(second)], dim=0)


def _few(source: Tensor, tree: Tree) -> bool:
    """Says whether so few places ask that attention for them alone is worth gathering them; not for rows without a prefix."""
    return bool(tree.lengths) and 4 * len(source) <= 3 * tree.suffixes[0] * tree.suffixes[1]


def _attend_source(
    parts: _Parts,
    products: _Products,
    tree: Tree,
    source: Tensor,
) -> Tensor:
    """Attention where the places ``source`` alone ask: query (H, S, D), returns (S, H, D)."""
    (prefixes, longest_prefix), (rows, longest) = tree.prefixes, tree.suffixes
    end = prefixes * longest_prefix
    in_prefix = int((source < end).sum())
    prefix_query, suffix_query = parts.query[:, :in_prefix], parts.query[:, in_prefix:]
    (prefix_key, suffix_key), (prefix_value, suffix_value) = (_split(part, tree) for part in parts[1:])
    prefix = _Parts(prefix_query, prefix_key, prefix_value)
    mixed: list[Tensor] = []
    if in_prefix:
        places = _Places(source[:in_prefix], prefixes, longest_prefix)
        keys = torch.arange(longest_prefix, device=source.device)
        is_later = keys > places.column[:, :, None]
        mask = torch.zeros(is_later.shape, device=source.device).masked_fill_(is_later, float("-inf"))[:, None]
        first = products.kernel(prefix._replace(query=places.gather(prefix_query)), mask)
        mixed.append(places.scatter(first))
    if in_prefix < len(source):
        places = _Places(source[in_prefix:] - end, rows, longest)
        assert tree.mask is not None
        number = torch.arange(rows, device=source.device)[:, None]
        mask = tree.mask.expand(rows, -1, -1, -1)[number, 0, places.column][:, None]
        last_columns = ints(places.column.amax(0))
        visible = VisibleKeys(mask, [longest_prefix + 1 + column for column in last_columns])
        suffix = _Parts(places.gather(suffix_query), suffix_key, suffix_value).behind_prefixes(prefix, tree)
        second = places.scatter(products.masked(suffix, visible))
        mixed.append(second.to(mixed[0].dtype) if mixed else second)
    return torch.cat(mixed)


class _Places:
    """Places of a rectangle of ``rows`` times ``length``, ascending, as a rectangle of their own: ``column`` (rows, M) says where in its
    row each is. M is how many the fullest row has; what other rows lack asks from their first place, and is thrown away."""

    def __init__(
        self,
        places: Tensor,
        rows: int,
        length: int,
    ) -> None:
        row = places // length
        counts = torch.bincount(row, minlength=rows)
        most = int(counts.max())
        before = counts.cumsum(0) - counts
        within = torch.arange(len(places), device=places.device) - before[row]
        self._shape = (rows, most)
        self._places = row * most + within
        columns = places.new_zeros(rows * most).index_copy(0, self._places, places % length)
        self.column = columns.view(rows, most)

    def gather(self, query: Tensor) -> Tensor:
        """(H, S, D) to (rows, H, M, D)."""
        rows, most = self._shape
        padded = query.new_zeros(query.shape[0], rows * most, query.shape[2])
        return _to_rows(padded.index_copy(1, self._places, query), rows, most)

    def scatter(self, mixed: Tensor) -> Tensor:
        """(rows, H, M, D) to (S, H, D)."""
        return _from_rows(mixed).index_select(0, self._places)


@dataclass(frozen=True)
class VisibleKeys:
    """The keys that queries see. ``mask`` (B or 1, 1, S, T) is 0 or -inf, ``ends`` (S,) the key behind the last that each may see in any row.

    ``plain``: each query sees all keys before its end, one more than the query before it, in every row; tiles then need no mask.
    """

    mask: Tensor | None
    ends: Sequence[int]
    plain: bool = False

    def chunks(self, parts: int) -> list[tuple[int, int, int]]:
        """First query of each chunk, the one behind its last, and the key behind the last that any of them sees."""
        count = len(self.ends)
        step = -(-count // parts)
        chunks: list[tuple[int, int, int]] = []
        for first in range(0, count, step):
            last = min(first + step, count)
            chunks.append((first, last, max(self.ends[first:last])))
        return chunks

    def hidden(self, tile: AttentionTile) -> Tensor:
        """The mask of a tile, from the first key on that one of its queries does not see."""
        if self.plain:  # made anew: for a long row, a mask of all its keys would take more memory than all else
            count = tile.queries.stop - tile.queries.start
            return torch.full((1, 1, count, count - 1), float("-inf")).triu_()
        assert self.mask is not None
        rows = tile.rows if len(self.mask) > 1 else slice(None)
        return self.mask[rows, :, tile.queries, : tile.end]


@dataclass(frozen=True)
class _Products:
    """How attention multiplies: with the scores times ``scaling``; ``bf16_backward``: in tiles of our own, the backward pass in bfloat16."""

    scaling: float | None
    bf16_backward: bool

    def causal(self, parts: _Parts) -> Tensor:
        """Attention of (B, H, S, D) queries to (B, KH, S, D) keys, each to those up to its own."""
        if not self._takes_tiles(parts):
            return self.kernel(parts, None)
        return self._tiled(parts, VisibleKeys(None, range(1, parts.query.shape[2] + 1), plain=True))

    def masked(self, parts: _Parts, visible: VisibleKeys) -> Tensor:
        """Attention of (B, H, S, D) queries to what they see of (B, KH, T, D) keys.

        Many queries are cut into chunks that are shown no key behind their own end.
        """
        if self._takes_tiles(parts):
            return self._tiled(parts, visible)
        query, key, value = parts
        mask = visible.mask
        assert mask is not None
        mixed: list[Tensor] = []
        for first, last, end in visible.chunks(1 if query.shape[2] < _MIN_CHUNKED else _CHUNKS):
            chunk = _Parts(query[:, :, first:last], key[:, :, :end], value[:, :, :end])
            mixed.append(self.kernel(chunk, mask[:, :, first:last, :end]))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)

    def kernel(self, parts: _Parts, mask: Tensor | None) -> Tensor:
        """torch's own. A CPU's takes three times as long in bfloat16 as in float32."""
        if parts.query.device.type == "cpu":
            parts = parts.each(lambda part: part.float())
        if mask is not None:
            mask = mask.to(parts.query.dtype)
        return _kernel(parts, mask, self.scaling)

    def _takes_tiles(self, parts: _Parts) -> bool:
        return self.bf16_backward and has_enough_queries(parts.query, parts.key.shape[1])

    def _tiled(self, parts: _Parts, visible: VisibleKeys) -> Tensor:
        query, key, value = parts
        scaling = query.shape[3] ** -0.5 if self.scaling is None else self.scaling
        # Under autocast transformers rotates in float32.
        mixed = cast(Any, _TiledAttention).apply(query, key.to(query.dtype), value.to(query.dtype), visible, scaling)
        return cast(Tensor, mixed)


class _TiledAttention(torch.autograd.Function):
    """Attention by products of tiles.

    The forward pass multiplies in the dtype it is given, with the softmax in float32. The backward pass multiplies in bfloat16, on
    attention weights that were kept in it. Weights that would take too much memory are made again. The softmax's own backward pass is
    torch's, which computes in float32 what it reads and writes in bfloat16; its mean is that of the rounded gradients, so that what
    rounding does to all of them alike cancels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visible: VisibleKeys,
        scaling: float,
    ) -> Tensor:
        rows, heads, length, _ = query.shape
        shared = key.shape[1]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        chunks = max(_CHUNKS, length // _LONG_CHUNK)
        parts = max(1, min(chunks, length // _MIN_CHUNK))
        ctx.tiles = list(tiles(rows, heads, visible.chunks(parts)))
        keeps = 2 * rows * heads * length * key.shape[2] <= _MAX_KEPT_BYTES
        kept: list[Tensor] = []
        for tile in ctx.tiles:
            weights = tile_weights(tile.group(query, shared), tile.keys(key), visible.hidden(tile), heads, scaling)
            out[tile.rows, :, tile.queries] = gather(weights, tile.keys(value))
            if keeps:
                kept.append(weights.bfloat16())
        exact = () if keeps else (query, key)
        ctx.save_for_backward(query.bfloat16(), key.bfloat16(), value.bfloat16(), *exact, *kept)
        ctx.keeps, ctx.visible, ctx.scaling, ctx.dtype = keeps, visible, scaling, query.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *others = ctx.saved_tensors
        heads, shared = query.shape[1], key.shape[1]
        grad = grads[0].bfloat16()
        query_grad = torch.empty(query.shape)
        # Gradients of keys and values lie transposed: the products want the attention weights, which are large, as they lie.
        key_grad = torch.zeros(key.mT.shape)
        value_grad = torch.zeros(value.mT.shape)
        for number, tile in enumerate(ctx.tiles):
            if ctx.keeps:
                weights = others[number]
            else:
                exact, exact_keys = tile.group(others[0], shared), tile.keys(others[1])
                weights = tile_weights(exact, exact_keys, ctx.visible.hidden(tile), heads, ctx.scaling).bfloat16()
            queries = tile.group(query, shared)
            row_grads = tile.group(grad, shared)
            grouped_weights = weights.view(*queries.shape[:2], -1)
            weight_grad = torch.bmm(row_grads, tile.keys(value).mT)
            score_grad = torch.ops.aten._softmax_backward_data(weight_grad, grouped_weights, -1, torch.bfloat16)
            mixed = torch.bmm(score_grad, tile.keys(key))
            query_grad[tile.rows, :, tile.queries] = mixed.view(*weights.shape[:3], -1)
            _add_transposed(value_grad, tile, row_grads, grouped_weights)
            _add_transposed(key_grad, tile, queries, score_grad)
        gradients = (query_grad.mul_(ctx.scaling), key_grad.mul_(ctx.scaling).mT, value_grad.mT)
        return *(gradient.to(ctx.dtype) for gradient in gradients), None, None


def _add_transposed(
    total: Tensor,
    tile: AttentionTile,
    queries: Tensor,
    weights: Tensor,
) -> None:
    """Adds queries^T weights (b * KH, D, end) to the tile's rows and keys of ``total`` (B, KH, D, T)."""
    product = torch.bmm(queries.mT.contiguous(), weights)
    total[tile.rows, :, :, : tile.end] += product.unflatten(0, (tile.count, -1))


def _to_rows(part: Tensor, rows: int, length: int) -> Tensor:
    """(H, rows * length, D) to (rows, H, length, D), without a copy."""
    return cast(Tensor, part.unflatten(1, (rows, length))).transpose(0, 1)


def _from_rows(part: Tensor) -> Tensor:
    """(rows, H, length, D) to (rows * length, H, D)."""
    return part.transpose(1, 2).flatten(0, 1)


def _to_members(part: Tensor, tree: Tree) -> Tensor:
    """(P, H, Lp, D) to (B, H, Lp, D): every suffix sees its parent prefix; gradients of the members add up."""
    if len(set(tree.members)) > 1:
        return part.repeat_interleave(torch.tensor(tree.members, device=part.device), dim=0)
    members = tree.members[0]
    expanded: Tensor = part.unsqueeze(1).expand(-1, members, -1, -1, -1)
    return expanded.flatten(0, 1)
