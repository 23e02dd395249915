"""The gated MLP of a layer as one function: the same numbers, part by part, and gradients near those of float32."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from gradus.training.engine import bfloat16_backward as products
from gradus.training.engine.bfloat16_backward import bfloat16_backward, gated_mlps

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def made(kind: type[PretrainedConfig], **changes: object) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**{**SIZES, **changes}))


def gradients(mlp: nn.Module, inputs: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """What a module makes of rows, and the gradients of it, its weights' first."""
    asked = [*(each for each in mlp.parameters() if each.requires_grad), inputs]
    out = mlp(inputs)
    return out.detach(), torch.autograd.grad(out.square().sum(), asked)


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config, MistralConfig])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_parts_make_what_the_whole_makes(
    kind: type[PretrainedConfig], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_VALUES", 40 * 6)
    monkeypatch.setattr(products, "_MIN_ROWS", 1)
    model = made(kind)
    mlp = model.model.layers[1].mlp
    inputs = torch.randn(2, rows, 16, requires_grad=True)
    out, exact = gradients(mlp, inputs)
    with bfloat16_backward(model):
        assert "forward" in vars(mlp)
        again, near = gradients(mlp, inputs)
        with torch.no_grad():
            assert torch.equal(mlp(inputs), again)
    assert "forward" not in vars(mlp)
    torch.testing.assert_close(again, out, rtol=1e-5, atol=1e-6)
    for one, other in zip(near, exact, strict=True):
        assert one.dtype == torch.float32
        assert 0 < (one - other).norm() < 0.02 * other.norm()


def test_only_what_computes_the_same_is_taken() -> None:
    assert len(list(gated_mlps(made(LlamaConfig)))) == 2
    assert not list(gated_mlps(made(GemmaConfig)))  # its activation is another
    assert not list(gated_mlps(made(LlamaConfig, hidden_act="gelu")))
    assert not list(gated_mlps(made(LlamaConfig, mlp_bias=True)))
    assert not list(gated_mlps(made(LlamaConfig).bfloat16()))
    watched = made(LlamaConfig)
    watched.model.layers[0].mlp.up_proj.register_forward_hook(lambda layer, given, out: None)
    assert len(list(gated_mlps(watched))) == 1


def test_frozen_weights_get_no_gradient_and_let_one_through() -> None:
    model = made(LlamaConfig)
    mlp = model.model.layers[0].mlp
    mlp.gate_proj.weight.requires_grad_(False)
    inputs = torch.randn(9, 16, requires_grad=True)
    _, exact = gradients(mlp, inputs)
    with bfloat16_backward(model):
        _, near = gradients(mlp, inputs)
    assert len(near) == 3
    assert all((one - other).norm() < 0.02 * other.norm() for one, other in zip(near, exact, strict=True))


def test_checkpointing_makes_the_same_gradients() -> None:
    model = made(LlamaConfig)
    mlp = model.model.layers[0].mlp
    inputs = torch.randn(9, 16, requires_grad=True)
    with bfloat16_backward(model):
        _, kept = gradients(mlp, inputs)
        made_again = checkpoint(mlp, inputs, use_reentrant=False).square().sum()
        again = torch.autograd.grad(made_again, [*mlp.parameters(), inputs])
    assert all(torch.equal(one, other) for one, other in zip(again, kept, strict=True))
