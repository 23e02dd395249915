"""Muon beside AdamW as one optimizer: what moves how far, what is remembered, and what a checkpoint must hold."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradus.training.engine.optimizers import Float32Muon, make_optimizer
from gradus.training.trainer_config import OptimizerConfig

PLAIN = OptimizerConfig(optimizer="muon", muon_lr=0.1, lr=0.01, betas=(0.0, 0.95))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(7, 4)
        self.up_proj = nn.Linear(4, 8, bias=False)
        self.norm = nn.LayerNorm(8)


def gradients(model: nn.Module, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draws)


def moved(config: OptimizerConfig, seeds: list[int], *, rate: float = 1.0) -> dict[str, Tensor]:
    """How far the last of some steps moved each parameter; ``rate`` is the schedule's as a share of the peak."""
    model = Small()
    optimizer = make_optimizer(model, config)
    before: dict[str, Tensor] = {}
    for seed in seeds:
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        gradients(model, seed)
        for group in optimizer.param_groups:
            group["lr"] = rate * config.lr * group.get("scale", 1.0)
        optimizer.step()
    return {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}


def test_matrices_inside_blocks_move_orthogonally_and_the_rest_by_adamw() -> None:
    moves = moved(PLAIN, [1])
    sizes = torch.linalg.svdvals(moves["up_proj.weight"]) / (0.1 * 2**0.5)  # 8 rows for 4 columns
    assert (sizes > 0.6).all()
    assert (sizes < 1.3).all()
    for name in ("embed_tokens.weight", "norm.weight"):  # AdamW's first step is the rate times the sign
        assert torch.allclose(moves[name].abs(), torch.full_like(moves[name], 0.01), rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.95])
def test_a_checkpoint_goes_on_bit_for_bit(momentum: float) -> None:
    config = PLAIN.model_copy(update={"betas": (momentum, 0.95)})
    model = Small()
    optimizer = make_optimizer(model, config)
    gradients(model, 1)
    optimizer.step()
    twin = copy.deepcopy(model)
    restored = make_optimizer(twin, config)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, steps in ((model, optimizer), (twin, restored)):
        gradients(each, 2)
        steps.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("there", [True, False])
def test_muon_multiplies_in_bfloat16_only_if_the_cpu_has_instructions_for_it(
    bfloat16_instructions: Callable[[bool], None], there: bool
) -> None:
    """torch's own always does: on a CPU without them a step of it took 25 times as long."""
    bfloat16_instructions(there)
    optimizer: Any = make_optimizer(Small(), PLAIN)
    assert isinstance(optimizer._parts[0], Float32Muon) == (not there)


@pytest.mark.parametrize("momentum", [0.0, 0.95])
def test_muon_is_torchs_in_either_dtype(bfloat16_instructions: Callable[[bool], None], momentum: float) -> None:
    config = PLAIN.model_copy(update={"betas": (momentum, 0.95), "weight_decay": 0.1})
    moves: list[dict[str, Tensor]] = []
    for there in (True, False):
        bfloat16_instructions(there)
        moves.append(moved(config, [1, 2, 3]))
    for name, move in moves[0].items():
        assert torch.allclose(move, moves[1][name], atol=0.02 * float(move.abs().max()))
