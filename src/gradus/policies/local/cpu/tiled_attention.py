"""Attention on a CPU by matrix products, a tile of rows and queries at a time, whose scores stay in the processor's cache.

torch's kernel for CPUs takes few queries of one head at once. Here all heads that share keys stand in one product, and a tile's scores
are made, turned into weights and used before the next tile's are: they never wait for memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradus.policies.local.cpu import support
from gradus.policies.local.cpu.float32_linear import products
from gradus.policies.local.cpu.support import has_fast_bfloat16

_SCORES = 2**20  # of a tile: 4 MiB in float32
_MIN_QUERIES = 64  # of the heads that share keys, together; below, torch's kernel is as fast


def has_enough_queries(query: Tensor, shared: int) -> bool:
    """Says if (B, H, S, D) queries to ``shared`` heads of keys are so many that tiles are faster than torch's kernel."""
    queries = query.shape[1] // shared * query.shape[2]
    return support.FAST and queries >= _MIN_QUERIES


def takes_tiles(query: Tensor, shared: int) -> bool:
    """Says if tiles are faster: on a CPU, in a dtype whose products are fast there, for enough queries."""
    if query.device.type != "cpu" or not has_enough_queries(query, shared):
        return False
    if query.dtype == torch.bfloat16:
        return has_fast_bfloat16(query.device)
    return query.dtype == torch.float32


@dataclass(frozen=True)
class AttentionTile:
    """Rows of a batch, queries of each of them, and how many keys these see at most."""

    rows: slice
    queries: slice
    end: int

    @property
    def count(self) -> int:
        """Returns how many rows."""
        return self.rows.stop - self.rows.start

    def group(self, part: Tensor, shared: int) -> Tensor:
        """Its queries of (B, H, S, D), those of heads with the same keys one after another: (b * KH, H / KH * s, D)."""
        queries = part[self.rows, :, self.queries]
        return queries.reshape(self.count * shared, -1, part.shape[3])

    def keys(self, part: Tensor) -> Tensor:
        """Its keys or values of (B, KH, T, D): (b * KH, end, D)."""
        return part[self.rows, :, : self.end].flatten(0, 1)


def tiles(
    rows: int,
    heads: int,
    chunks: Sequence[tuple[int, int, int]],
) -> Iterator[AttentionTile]:
    """Cut chunks of queries (first, behind the last, keys seen at most) of all rows into tiles."""
    for first, last, end in chunks:
        scores = heads * (last - first) * end  # of one row
        step = max(1, _SCORES // scores)
        # Rows are cut, not queries: the keys of a row are read once for all of its queries.
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield AttentionTile(slice(start, stop), slice(first, last), end)


def tile_weights(
    query: Tensor,
    keys: Tensor,
    hidden: Tensor,
    heads: int,
    scaling: float,
) -> Tensor:
    """Attention weights (b, H, s, T) of the queries (N, G, D) of a tile for keys (N, T, D), in the dtype of the queries.

    ``hidden`` (b or 1, 1, s, t) is added to the scores of the last t keys: 0, or -inf where a query may not look. The
    softmax is taken in float32.
    """
    length, masked = hidden.shape[2:]
    rows = len(query) * (query.shape[1] // length) // heads
    scores = products(query, keys, scaling).view(rows, heads, length, -1)
    scores[..., scores.shape[3] - masked :] += hidden
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype)


def gather(weights: Tensor, values: Tensor) -> Tensor:
    """Sums values (N, T, D) by the weights of a tile's queries; returns (b, H, s, D)."""
    count, length, _ = values.shape
    mixed = products(weights.view(count, -1, length), values.mT)
    return mixed.view(*weights.shape[:3], -1)


def attend_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
) -> Tensor:
    """Attention of (B, H, S, D) queries to (B, KH, T, D) keys without a gradient; ``mask`` (B or 1, 1, S, T) is additive."""
    rows, heads, length, _ = query.shape
    shared = key.shape[1]
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for tile in tiles(rows, heads, [(0, length, key.shape[2])]):
        hidden = mask if len(mask) == 1 else mask[tile.rows]
        queries = tile.group(query, shared)
        weights = tile_weights(queries, tile.keys(key), hidden, heads, scaling)
        out[tile.rows] = gather(weights, tile.keys(value))
    return out


def attend_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
) -> Tensor:
    """Attention of one place of each row, without a gradient: (B, KH, G, D) queries, G of each head of keys, to (B, KH, T, D) keys.

    ``mask`` (B, 1, 1, T) is additive. On a CPU in float32 two products take 0.5 to 0.8 of what torch's kernel takes. In bfloat16 that
    kernel takes twice as long for one query as for two.
    """
    if not support.FAST:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    if query.device.type != "cpu" or query.dtype != torch.float32:
        count = query.shape[2]
        # The second query is thrown away.
        if query.device.type == "cpu" and count == 1:
            query = query.repeat(1, 1, 2, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
        return mixed[:, :, :count]
    rows, shared = key.shape[:2]
    hidden = mask.expand(-1, shared, -1, -1).flatten(0, 1)
    keys = key.flatten(0, 1)
    scores = torch.baddbmm(hidden, query.flatten(0, 1), keys.mT, alpha=scaling)
    mixed = torch.bmm(scores.softmax(-1), value.flatten(0, 1))
    return mixed.view(rows, shared, *mixed.shape[1:])
