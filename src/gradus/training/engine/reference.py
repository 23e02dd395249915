"""The model that KL is measured to: what the run began with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import launched_with
from gradus.training.engine.optimizers import trainable

Reference = Callable[[], AbstractContextManager[nn.Module]]


def load_reference(loaded: LoadedModel, config: GrpoConfig) -> Reference | None:
    """Returns what opens the reference, None if kl_coef is 0.

    With adapters it is the model itself, with the adapters as they are now, so no second model is held; else it is a copy.
    """
    if config.kl_coef == 0:
        return None
    if config.lora is not None and not launched_with("FSDP"):
        adapters = {name: parameter.detach().clone() for name, parameter in trainable(loaded.model).items()}
        return partial(_with_adapters, loaded.model, adapters)
    return partial(nullcontext, copy.deepcopy(loaded.model).requires_grad_(False))


@contextmanager
def _with_adapters(model: nn.Module, adapters: dict[str, Tensor]) -> Generator[nn.Module]:
    parameters = trainable(model)
    trained = {name: parameter.data for name, parameter in parameters.items()}
    device = next(iter(trained.values())).device.type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    try:
        for name, parameter in parameters.items():
            parameter.data = adapters[name]
        # autocast keeps casts of the trained adapters and must not take them here
        with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):
            yield model
    finally:
        for name, parameter in parameters.items():
            parameter.data = trained[name]
