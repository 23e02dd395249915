"""AdamW, Muon, gradient clipping and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradus.core import ConfigError
from gradus.core.values import Json, JsonDict
from gradus.policies.local.cpu.support import lacks_bfloat16
from gradus.policies.local.loading import require_bitsandbytes
from gradus.training.distributed.processes import full_tensor, gather_if_sharded, shard_like
from gradus.training.engine.master_weights import MasterWeights, Parameters, master_of
from gradus.training.trainer_config import SCHEDULES, OptimizerConfig

MUON_MOMENTUM = 0.95  # torch's and Jordan's


def lr_at(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of optimizer step ``step`` (1 for the first) of ``steps``.

    >>> config = OptimizerConfig(lr=1.0, schedule="linear", warmup=0.2)
    >>> [round(lr_at(config, step, 10), 3) for step in (1, 2, 3, 10)]
    [0.5, 1.0, 1.0, 0.125]
    """
    warmup_steps = round(config.warmup * steps)
    if step <= warmup_steps:
        return config.lr * step / warmup_steps
    progress = (step - warmup_steps - 1) / max(1, steps - warmup_steps)
    share = SCHEDULES[config.schedule](min(1.0, progress))
    floor = config.min_lr_ratio
    return config.lr * (floor + (1.0 - floor) * share)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter, of those that require a gradient; with adapters these are the adapters alone."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise ConfigError("no parameter of the model requires a gradient; nothing can be trained")
    return parameters


def held_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that an optimizer moves, in the order in which its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Makes AdamW, with moments of 32 or 8 bits, or Muon with AdamW beside it. Weights in bfloat16 get float32 masters.

    AdamW alone decays matrices only: norms and biases have no reason to shrink. Beside Muon both decay all they hold.
    """
    parameters = trainable(model)

    def make(parameters: Parameters) -> torch.optim.Optimizer:
        return _OPTIMIZERS[config.optimizer](parameters, config)

    rounded = any(parameter.dtype == torch.bfloat16 for parameter in parameters.values())
    return MasterWeights(parameters, make) if rounded else make(parameters)


def _adamw(parameters: Parameters, config: OptimizerConfig) -> torch.optim.Optimizer:
    return _storable(torch.optim.AdamW(_groups(parameters, config), lr=config.lr, betas=config.betas, fused=True))


def _adamw_8bit(parameters: Parameters, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW of bitsandbytes, whose moments have eight bits (arXiv 2110.02861). Raises ConfigError without the package."""
    require_bitsandbytes("optimizer = 'adamw_8bit'")
    optimizers: Any = import_module("bitsandbytes.optim")  # it has no types
    return optimizers.AdamW8bit(_groups(parameters, config), lr=config.lr, betas=config.betas)


def _groups(parameters: Parameters, config: OptimizerConfig) -> list[JsonDict]:
    """Matrices, which decay, and vectors, which do not."""
    matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups: list[JsonDict] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]  # adapters, say, have no vectors


def _storable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let ``state_dict`` give full tensors where processes hold shards of them, and ``load_state_dict`` take them back."""

    def shard_state(optimizer: torch.optim.Optimizer, stored: JsonDict) -> JsonDict:
        parameters = held_parameters(optimizer)
        return _changed(stored, lambda value, index: shard_like(value, parameters[index]))

    def gather_state(optimizer: torch.optim.Optimizer, stored: JsonDict) -> JsonDict:
        return _changed(stored, lambda value, index: gather_if_sharded(value))

    optimizer.register_load_state_dict_pre_hook(shard_state)
    optimizer.register_state_dict_post_hook(gather_state)
    return optimizer


def _changed(stored: JsonDict, change: Callable[[Tensor, int], Tensor]) -> JsonDict:
    """An optimizer's state dict with each tensor changed; ``change`` gets the number of its parameter too."""
    state: dict[int, dict[str, Tensor]] = {}
    for index, moments in stored["state"].items():
        state[index] = {name: change(value, index) for name, value in moments.items()}
    return {**stored, "state": state}


class Float32Muon(torch.optim.Muon):
    """torch's Muon with products in float32. Its own are in bfloat16, which a CPU without instructions for it computes so slowly that
    the optimizer takes longer than the passes of a small model. The state is the same."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all parameters that have a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                update = gradient.lerp(buffer, momentum) if group["nesterov"] else buffer
                rows, columns = parameter.shape
                # As torch's: decoupled decay, then a step that is longer for a tall matrix.
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(_orthogonalized(update, group), alpha=-lr * math.sqrt(max(1, rows / columns)))


def _orthogonalized(matrix: Tensor, group: Json) -> Tensor:
    """The matrix with singular values near 1, by Newton and Schulz' iteration with the coefficients of a Muon's ``group``."""
    a, b, c = group["ns_coefficients"]
    # The smaller of both Gram matrices is that of the wide form.
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.mT if tall else matrix
    norm = cast(Tensor, wide.norm())
    wide = wide / norm.clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = wide @ wide.mT
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        wide = torch.addmm(wide, polynomial, wide, beta=a)
    return wide.mT if tall else wide


class _Muon(torch.optim.Optimizer):
    """torch's Muon (Jordan et al., 2024) on the matrices inside the blocks and AdamW on the rest, as one optimizer.

    Each group's ``scale`` is its lr as a multiple of the schedule's, so that one schedule moves both.
    """

    def __init__(self, parameters: Parameters, config: OptimizerConfig) -> None:
        inside: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in parameters.items():
            if parameter.dim() == 2 and not _is_embedding(name):
                inside.append(parameter)
            else:
                rest.append(parameter)
        if not inside:
            raise ConfigError(
                "muon needs matrices inside the model's blocks, and none of them is trained; set optimizer = adamw"
            )
        decay = config.weight_decay
        momentum = MUON_MOMENTUM if config.betas[0] else 0.0
        muon = Float32Muon if lacks_bfloat16(inside[0].device) else torch.optim.Muon
        nesterov = momentum > 0
        parts: list[torch.optim.Optimizer] = [
            muon(inside, lr=config.muon_lr, weight_decay=decay, momentum=momentum, nesterov=nesterov)
        ]
        if rest:
            adamw = torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, weight_decay=decay, fused=True)
            parts.append(adamw)
        self._parts = tuple(_storable(part) for part in parts)
        super().__init__([*inside, *rest], {})
        self._take_groups()
        for group in self.param_groups:
            group["scale"] = group["lr"] / config.lr

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step both."""
        for part in self._parts:
            part.step()

    def state_dict(self) -> JsonDict:
        """The states of both, in order."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: JsonDict) -> None:
        """Put both back as they were."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._take_groups()

    def _take_groups(self) -> None:
        """Shows the groups of both as one optimizer's: loading a state makes new ones."""
        self.param_groups = [group for part in self._parts for group in part.param_groups]


def _is_embedding(name: str) -> bool:
    return any(word in name for word in ("embed", "lm_head", "wte", "wpe"))


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Norm of the whole gradient before clipping, scalar. ``limit`` 0 measures only."""
    masters = [master_of(parameter) for parameter in model.parameters()]
    trained = [master for master in masters if master.grad is not None]
    return full_tensor(nn.utils.clip_grad_norm_(trained, limit if limit > 0 else math.inf))


_OPTIMIZERS: Mapping[str, Callable[[Parameters, OptimizerConfig], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adamw_8bit": _adamw_8bit,
    "muon": _Muon,
}
