"""A model sharded over the processes: torch's FSDP2, by accelerate's own configuration.

``accelerate launch --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP``:
each process keeps a shard of every weight, of its gradient and of the optimizer's state. A pass gathers the weights layer by layer,
drops them again, and adds up the gradients of all processes into their shards. Source: arXiv 2304.11277, and torch's ``fully_shard``.

What a pass gathers, all processes must gather at the same time, so all take equally many passes; and the sampler needs the
weights for thousands of tokens, so each process keeps a full inference model.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradus.core import ConfigError
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import Stretch
from gradus.training.distributed.processes import full_tensor, gather_full_tensor, largest, launched_with, world
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.optimizers import trainable
from gradus.training.engine.tree_support import supports_tree

LAUNCH = "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"


def shard(loaded: LoadedModel, *, samples: bool) -> LoadedModel:
    """Shard the weights of ``loaded``, in place, if the launcher asks for FSDP, and return the inference model.

    ``samples``: whether this process samples, and needs a full copy for it; :func:`sync_inference_model` copies new weights to it. Without
    FSDP, or without ``samples``, that is ``loaded`` itself. Raises ConfigError for a configuration that is not supported.
    """
    if world().size == 1 or not launched_with("FSDP"):
        return loaded
    settings = fsdp_settings()
    inference_model = replace(loaded, model=copy.deepcopy(loaded.model)) if samples else loaded
    _apply_fsdp(causal_model(loaded.model), settings)
    return inference_model


def _apply_fsdp(model: Any, settings: Any) -> None:
    """One FSDP unit for each module that accelerate's wrap policy names, and one for the rest."""
    from accelerate.utils import fsdp_utils
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = world().device
    mesh = init_device_mesh(device.type if device else "cpu", (world().size,))
    wraps: Callable[[nn.Module], bool] | None
    wraps = cast(Any, fsdp_utils).fsdp2_prepare_auto_wrap_policy(settings, model)
    inside = [module for module in model.modules() if wraps and module is not model and wraps(module)]
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # weights in 16 bits have such gradients
    for module in reversed(inside):  # the innermost first
        fully_shard(module, mesh=mesh, reshard_after_forward=settings.reshard_after_forward, mp_policy=exact)
    fully_shard(model, mesh=mesh, mp_policy=exact)
    for unit in _units(model):
        # Losses are divided by figures of the whole step: gradients are added up, where FSDP would take their mean.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


@lru_cache(maxsize=1)
def fsdp_settings() -> Any:
    """accelerate's plugin, filled from what its launcher was told. Raises ConfigError for what is not followed here."""
    from accelerate import FullyShardedDataParallelPlugin

    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(f"FSDP 1 is not supported, torch's fully_shard (FSDP 2) is; launch with {LAUNCH}")
    plugin = FullyShardedDataParallelPlugin()
    offloads = os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true"
    if offloads or plugin.activation_checkpointing or plugin.ignored_modules or launched_with("PARALLELISM_CONFIG"):
        raise ConfigError(
            "the launcher's offloading, activation checkpointing, ignored modules and parallelism_config are not supported; launch with "
            f"{LAUNCH}, and set gradient_checkpointing in the run"
        )
    return plugin


def _units(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in causal_model(model).modules() if isinstance(module, FSDPModule)]


def is_sharded(model: nn.Module) -> bool:
    """Says whether the model is sharded over processes."""
    return world().size > 1 and bool(_units(model))


def idle_passes(loaded: LoadedModel, passes: int, backward: Callable[[Tensor], None] = Tensor.backward) -> None:
    """Before this process's ``passes``: take as many without effect as another process has more, so that all meet in each."""
    for _ in range(int(largest(passes)) - passes):
        _idle_pass(loaded, backward)


def _idle_pass(loaded: LoadedModel, backward: Callable[[Tensor], None]) -> None:
    """Gather and reduce what every pass does; the gradient is zero."""
    two_tokens = Stretch()
    two_tokens.show([0])
    two_tokens.answer([0], 0, [0.0])
    sequence = two_tokens.sample((0, 0), 0)
    (batch,) = microbatches([sequence], budget=1, share=supports_tree(loaded.model))
    scores = score_tokens(loaded.model, batch.to(loaded.device), SamplingConfig())
    backward(0.0 * scores.logprobs.sum())


@torch.no_grad()
def sync_inference_model(inference_model: LoadedModel, loaded: LoadedModel) -> None:
    """Copy the trained weights to the inference model, one by one. All processes must call this. Does nothing if they are one model."""
    if inference_model is loaded:
        return
    trained = trainable(loaded.model)
    for name, parameter in trainable(inference_model.model).items():
        parameter.copy_(full_tensor(trained[name]))


def full_state_dict(model: nn.Module) -> dict[str, Tensor] | None:
    """The full state dict in process 0's memory; None if the model is not sharded. All processes must call this."""
    if not is_sharded(model):
        return None
    sharded = cast(dict[str, Tensor], model.state_dict(keep_vars=True))
    full = {id(value): gather_full_tensor(value) for value in sharded.values()}  # tied weights stay one tensor
    return {name: full[id(value)] for name, value in sharded.items()}
