"""With GRADUS_PLAIN_TORCH=1 nothing but plain torch computes, and a model says the same to rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import play

from gradus.policies.local.cpu import float32_linear, support, tiled_attention
from gradus.policies.local.cpu.float32_linear import FastLinear
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
