"""The model that KL is measured to: what the run began with, or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from gradus.core import ConfigError
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import launched_with
from gradus.training.engine.optimizers import trainable

Reference = Callable[[], AbstractContextManager[nn.Module]]


def load_reference(loaded: LoadedModel, config: GrpoConfig) -> Reference | None:
    """Returns what opens the reference, None if kl_coef is 0.

    With adapters it is the model itself, with the adapters as they are now (new ones change nothing), so no second model is loaded.
    Raises ConfigError if the reference has other words than the model.
    """
    if config.kl_coef == 0:
        return None
    if config.lora is not None and config.reference is None and not launched_with("FSDP"):
        adapters = {name: parameter.detach().clone() for name, parameter in trainable(loaded.model).items()}
        return partial(_with_adapters, loaded.model, adapters)
    reference = load_model(
        config.reference or loaded.path,
        dtype=loaded.dtype,
        device=loaded.device,
        attention=config.attention,
        keep_history=True,  # it scores tokens and renders nothing
    )
    if reference.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"the reference {config.reference} has another tokenizer than the model, so its log-probs would be those of other "
            "words; name a reference with the model's own tokenizer"
        )
    return partial(nullcontext, reference.model.requires_grad_(False))


def check_begins_as_stored(loaded: LoadedModel, reference: Reference | None) -> None:
    """Raise ConfigError if the model does not begin as the reference that its KL is measured to."""
    if reference is None or launched_with("FSDP"):  # which holds a part of each weight
        return
    with reference() as stored:
        weights = stored.state_dict()
        same = all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    if not same:
        raise ConfigError(
            f"KL is measured to the model as it is stored in {loaded.path}, but the reference that was loaded has other weights than the model: "
            "if it has been trained since, save it and train from that folder, or name grpo.reference"
        )


@contextmanager
def _with_adapters(model: nn.Module, adapters: dict[str, Tensor]) -> Iterator[nn.Module]:
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
