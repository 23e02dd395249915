"""Attention on a CPU by matrix products, a tile of rows and queries at a time, whose scores stay in the processor's cache.

torch's kernel for CPUs takes few queries of one head at once. Here all heads that share keys stand in one product, and a tile's scores
are made, turned into weights and used before the next tile's are: they never wait for memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.policies.local.float32_linear import products

_SCORES = 2**20  # of a tile: 4 MiB in float32
MIN_QUERIES = 64  # of the heads that share keys, together; below, torch's kernel is as fast


@dataclass(frozen=True)
class Tile:
    """Rows of a batch, queries of each of them, and how many keys these see at most."""

    rows: slice
    queries: slice
    end: int

    @property
    def count(self) -> int:
        """How many rows."""
        return self.rows.stop - self.rows.start

    def group(self, part: Tensor, shared: int) -> Tensor:
        """Its queries of (B, H, S, D), those of heads with the same keys one after another: (b * KH, H / KH * s, D)."""
        return part[self.rows, :, self.queries].reshape(self.count * shared, -1, part.shape[3])

    def keys(self, part: Tensor) -> Tensor:
        """Its keys or values of (B, KH, T, D): (b * KH, end, D)."""
        return part[self.rows, :, : self.end].flatten(0, 1)


def tiles(rows: int, heads: int, chunks: Sequence[tuple[int, int, int]]) -> Iterator[Tile]:
    """Cut chunks of queries (first, behind the last, keys seen at most) of all rows into tiles."""
    for first, last, end in chunks:
        step = max(1, _SCORES // (heads * (last - first) * end))
        for start in range(0, rows, step):
            yield Tile(slice(start, min(start + step, rows)), slice(first, last), end)


def attend_tile(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, heads: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """What the queries (N, G, D) of a tile gather from keys and values (N, T, D): (N, G, D), and their weights (b, H, s, T).

    ``hidden`` (b or 1, 1, s, t) is added to the scores of the last t keys: 0, or -inf where a query may not look. The
    softmax is taken in float32, products in the dtype of the queries.
    """
    rows = len(query) * (query.shape[1] // hidden.shape[2]) // heads
    scores = products(query, keys, scaling).view(rows, heads, hidden.shape[2], -1)
    scores[..., scores.shape[3] - hidden.shape[3] :] += hidden
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return products(weights.view(*query.shape[:2], -1), values.mT), weights


def attend_tiles(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention of (B, H, S, D) queries to (B, KH, T, D) keys without a gradient; ``mask`` (B or 1, 1, S, T) is additive."""
    (rows, heads, length, size), shared = query.shape, key.shape[1]
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for tile in tiles(rows, heads, [(0, length, key.shape[2])]):
        hidden = mask if len(mask) == 1 else mask[tile.rows]
        mixed, _ = attend_tile(tile.group(query, shared), tile.keys(key), tile.keys(value), hidden, heads, scaling)
        out[tile.rows] = mixed.view(tile.count, heads, length, size)
    return out
