"""The optimizer's state sharded: DeepSpeed's ZeRO, stages 1 and 2, by accelerate's own configuration.

``accelerate launch --use_deepspeed --zero_stage 1``: every process holds all weights, and keeps a shard of the optimizer's state and of
the float32 weights that it updates (stage 2: of the gradients too). So sampling, validation and saving are those of data parallel
training; only adding up, clipping and the update are DeepSpeed's. Source: arXiv 1910.02054.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from gradus.core import ConfigError
from gradus.training.distributed.processes import launched_with, world

LAUNCH = "--use_deepspeed --zero_stage 1"


def zero_launched() -> bool:
    """Whether several processes were launched with DeepSpeed."""
    return world().size > 1 and launched_with("DEEPSPEED")


class ZeroOptimizer(torch.optim.Optimizer):
    """AdamW under DeepSpeed's engine: ``backward`` a loss, then ``step``; the files it writes are AdamW's own."""

    def __init__(self, model: nn.Module, inner: torch.optim.AdamW, *, grad_clip: float) -> None:
        deepspeed = _package("deepspeed")
        self._trained = [parameter for group in inner.param_groups for parameter in group["params"]]
        if any(hasattr(parameter, "_hp_mapping") for parameter in self._trained):
            raise ConfigError("DeepSpeed cannot begin again: launch without it if a schedule resets the optimizer")
        if any(parameter.dtype != torch.float32 for parameter in self._trained):
            raise ConfigError(
                "DeepSpeed trains float32 weights here; set dtype = float32, with autocast = true for speed"
            )
        self._layout = inner.state_dict()["param_groups"]
        super().__init__(self._trained, {})
        self._engine: Any = deepspeed.initialize(
            model=model, optimizer=inner, config=zero_settings(grad_clip), dist_init_required=False
        )[0]
        self._inner = inner
        self.param_groups = inner.param_groups

    def backward(self, loss: Tensor) -> None:
        """Add a microbatch's gradient; DeepSpeed takes the mean over processes, where ours are parts of one sum."""
        self._engine.optimizer.clear_backward_seen_flag()  # as its own forward pass does, or stage 2 counts gradients twice
        self._engine.backward(loss * world().size)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Add up the processes' gradients, clip and update; weights stay as they were if the gradient is not finite."""
        self._engine.step()

    def norm(self) -> float:
        """Norm of the whole gradient of the last step before clipping."""
        norm = self._engine.get_global_grad_norm()
        return math.nan if norm is None else float(norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients."""
        self._engine.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """AdamW's full state. All processes must call this."""
        get = _package("deepspeed.utils").safe_get_full_optimizer_state
        steps = [memory["step"] for memory in self._inner.state.values() if memory]
        if steps:
            self._link()
        state: dict[int, dict[str, Tensor]] = {}
        for index, parameter in enumerate(self._trained if steps else ()):
            full = {key: get(parameter, key).cpu() for key in ("exp_avg", "exp_avg_sq")}
            state[index] = {"step": steps[0].cpu().clone(), **full}  # a tensor of its own: AdamW counts in place
        return {"state": state, "param_groups": self._layout}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from AdamW's state and from the weights as they are now. All processes must call this."""
        put = _package("deepspeed.utils").safe_set_full_optimizer_state
        self._engine.optimizer.refresh_fp32_params()
        if not state_dict["state"]:
            return
        for group in self._inner.param_groups:
            for part in group["params"]:
                step = state_dict["state"][0]["step"].clone().to(part.device)
                empty = {key: torch.zeros_like(part) for key in ("exp_avg", "exp_avg_sq")}
                self._inner.state[part] = {"step": step, **empty}
        self._link()
        for index, parameter in enumerate(self._trained):
            for key in ("exp_avg", "exp_avg_sq"):
                value = state_dict["state"][index][key].to(parameter.device)
                put(parameter, value, key)

    def _link(self) -> None:
        """Let each weight know where its memory is; by itself DeepSpeed does so at the first step, for the first group alone."""
        zero = self._engine.optimizer
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()


def _package(name: str) -> Any:
    """An optional dependency, imported where it is asked for."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"the launcher asks for DeepSpeed, which cannot be imported: {error}; pip install deepspeed"
        ) from error


def zero_settings(grad_clip: float) -> dict[str, Any]:
    """DeepSpeed's configuration: ZeRO's from the launcher, the rest from the run. Raises ConfigError for what is not followed."""
    from accelerate import DeepSpeedPlugin

    try:
        given = DeepSpeedPlugin().deepspeed_config
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"accelerate's DeepSpeed settings cannot be used: {error}; launch with {LAUNCH}") from error
    zero = {key: value for key, value in given["zero_optimization"].items() if value != "auto"}
    if zero.get("stage") not in (1, 2):
        raise ConfigError(
            f"DeepSpeed's stage {zero.get('stage')} is not supported; launch with {LAUNCH} or 2, or with FSDP, which deals out "
            "weights too"
        )
    for part in ("offload_optimizer", "offload_param"):
        if (zero.pop(part, None) or {}).get("device", "none") != "none":
            raise ConfigError(f"DeepSpeed's {part} is not supported; leave it out")
    if odd := sorted(set(given) & {"optimizer", "scheduler"}):
        raise ConfigError(f"DeepSpeed's {' and '.join(odd)} would take the place of the run's own; leave it out")
    return {
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": 1,  # of no effect: a step's losses are divided by figures of the whole step
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # as many passes as there are; ``step`` is the boundary
        "gradient_clipping": grad_clip,
    }
