"""Attention in tiles is torch's attention, however rows are cut into tiles, and is left to torch where products are slow or inexact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.policies.local.cpu import tiled_attention
from gradus.policies.local.cpu.tiled_attention import attend_tiles, takes_tiles


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(1, 5),
    st.sampled_from([(4, 1), (4, 2), (3, 3)]),
    st.integers(1, 30),
    st.integers(0, 40),
    st.sampled_from([1, 500, 2**20]),
)
def test_tiles_are_the_kernel(seed: int, rows: int, heads: tuple[int, int], length: int, past: int, scores: int):
    """Rows of different lengths, whose first queries may be padding that sees one key, in a cache with room behind them."""
    chance = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads[0], length, 8, generator=chance)
    buffers = torch.randn(2, rows, heads[1], past + length + 3, 8, generator=chance)
    key, value = buffers[:, :, :, : past + length]
    pads = torch.randint(0, length, (rows, 1), generator=chance)
    positions = (past + torch.arange(length) - pads).clamp(min=0)
    behind = torch.arange(past + length) > positions[:, :, None]
    mask = torch.zeros(behind.shape).masked_fill_(behind, float("-inf"))[:, None]
    patch = pytest.MonkeyPatch()
    patch.setattr(tiled_attention, "_SCORES", scores)
    try:
        near = attend_tiles(query, key, value, mask, 0.3)
    finally:
        patch.undo()
    true = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=heads[0] != heads[1])
    torch.testing.assert_close(near, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "length", "taken"),
    [(torch.float32, 16, True), (torch.float32, 15, False), (torch.float64, 16, False), (torch.float16, 16, False)],
)
def test_few_queries_and_dtypes_without_fast_products_are_left_to_torch(dtype: torch.dtype, length: int, taken: bool):
    assert takes_tiles(torch.zeros(2, 8, length, 4, dtype=dtype), 2) is taken
