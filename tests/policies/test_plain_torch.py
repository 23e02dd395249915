"""With GRADUS_PLAIN_TORCH=1 nothing but plain torch computes, and a model says the same to rounding; attention in tiles is torch's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import play

from gradus.policies.local.cpu import float32_linear, support, tiled_attention
from gradus.policies.local.cpu.float32_linear import FastLinear
from gradus.policies.local.cpu.tiled_attention import attend_tiles
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig


def test_both_ways_give_the_same_answers(model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(float32_linear, "_onednn_is_faster", float32_linear._is_there)
    monkeypatch.setattr(float32_linear, "_LITTLE", 1)
    tiled: list[int] = []
    real = tiled_attention.tile_weights
    monkeypatch.setattr(tiled_attention, "tile_weights", lambda *given: (tiled.append(1), real(*given))[1])
    said, used = [], []
    for fast in (True, False):
        monkeypatch.setattr(support, "FAST", fast)
        tiled.clear()
        loaded = load_model(model_folder("llama"), device="cpu")
        said.append(play(LocalPolicy(loaded, SamplingConfig(max_new_tokens=12)), 6, 2))
        linear = any(type(module) is FastLinear for module in loaded.model.modules())
        used.append((linear, bool(tiled), support.has_fast_bfloat16(torch.device("cpu"))))
    assert used[0][:2] == (float32_linear._is_there(), True)
    assert used[1] == (False, False, False)
    tokens = [[action.tokens for row in rows for action in row if action.tokens] for rows in said]
    assert tokens[0]
    assert [each.action_ids for each in tokens[0]] == [each.action_ids for each in tokens[1]]
    for one, other in zip(*tokens, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


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
