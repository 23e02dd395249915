"""Prepares a model for training: loads it, puts adapters on it, and sets the precision of its passes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradus.core import ConfigError, child_seed
from gradus.policies.local.cpu.support import autocasts, has_fast_bfloat16
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.one_at_a_time import quiet_transformers, torch_seeded
from gradus.training.distributed.processes import world
from gradus.training.engine.bfloat16_backward import bfloat16_backward
from gradus.training.engine.forward import disable_dropout
from gradus.training.engine.fsdp import is_sharded
from gradus.training.engine.optimizers import trainable
from gradus.training.engine.tree_support import tree_attention
from gradus.training.trainer_config import LoraConfig, TrainerConfig


def prepare_model(source: LoadedModel | str | Path, config: TrainerConfig) -> LoadedModel:
    """Loads (or takes) the model, puts adapters on it, and makes train mode and eval mode the same function.

    A model in memory stays in the dtype, on the device and with the attention that it was loaded with.

    Raises:
        ConfigError: the weights cannot be trained, or the adapters are other ones than the settings name.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = source if isinstance(source, LoadedModel) else _load(source, config)
    model = loaded.model
    if loaded.dtype == torch.float16:
        raise ConfigError("weights in float16 cannot be trained; set dtype to bfloat16 or float32")
    _refuse_quantized(loaded, config)
    if hasattr(model, "peft_config"):
        _take_adapters(model, config.lora)
    elif config.lora is not None:
        model = _with_lora(model, config.lora, config.seed)
    _name_base(model)
    disable_dropout(model.eval())
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    trainable(model)  # refuses a model without any
    return replace(loaded, model=model, autocast=autocasts(config.autocast, loaded.device))


def _load(source: str | Path, config: TrainerConfig) -> LoadedModel:
    device = config.device
    if device == "auto":
        device = world().device or "auto"
    return load_model(
        source,
        device=device,
        dtype=config.weights_dtype,
        attention=config.attention,
        quantize=config.quantize,
    )


def _refuse_quantized(loaded: LoadedModel, config: TrainerConfig) -> None:
    """Raises ConfigError for weights that cannot move: without adapters their norms and embeddings alone would be trained."""
    quantizer = getattr(causal_model(loaded.model), "hf_quantizer", None)
    if quantizer is None or (quantizer.is_trainable and config.lora is not None):
        return
    method = quantizer.quantization_config.quant_method
    name = getattr(method, "value", method)
    remedy = "name the model in 16 bits"
    if quantizer.is_trainable:
        remedy = "set lora, or name the model in 16 bits"
    raise ConfigError(f"the weights of {loaded.path} are quantized ({name}) and cannot be trained; {remedy}")


def checkpoint_activations(model: Any) -> None:
    """Lets the model forget activations in the forward pass and compute them again in the backward pass: less memory, more time."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.enable_input_require_grads()
    # transformers checkpoints what is in train mode. There some layers draw noise that has no module of its own (dropout, routing).
    model.training = True
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module.training = True
            module._gradient_checkpointing_func = partial(_in_eval_mode, module, module._gradient_checkpointing_func)


def _in_eval_mode(
    module: nn.Module,
    checkpointed: Callable[..., Any],
    run: Callable[..., Any],
    *args: Any,
) -> Any:
    """``checkpointed(run, *args)``, in which ``module`` itself is in eval mode whenever it runs."""

    def quiet(*inputs: Any, **options: Any) -> Any:
        training = module.training
        module.training = False
        try:
            return run(*inputs, **options)
        finally:
            module.training = training

    return checkpointed(quiet, *args)


def _take_adapters(model: Any, config: LoraConfig | None) -> None:
    """Goes on training the adapters that a model was loaded with. Raises ConfigError if the settings name others."""
    adapter = model.peft_config[model.active_adapter]
    if adapter.use_dora or adapter.modules_to_save:
        raise ConfigError("the model's adapters are not plain LoRA; merge them first with gradus export")
    if config is None or (config.rank, config.alpha) != (adapter.r, adapter.lora_alpha):
        settings = "lora is not set"
        if config is not None:
            settings = f"lora asks for rank {config.rank} and alpha {config.alpha:g}"
        raise ConfigError(
            f"the model has adapters of rank {adapter.r} and alpha {adapter.lora_alpha:g}, but {settings}; set lora to those, "
            "or merge them first with gradus export"
        )
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)


def _with_lora(model: Any, config: LoraConfig, seed: int) -> Any:
    with quiet_transformers():
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

    adapter = PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=config.targets if isinstance(config.targets, str) else list(config.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch_seeded(child_seed(seed, "lora")), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers in words that are being renamed
        try:
            return get_peft_model(model, adapter)
        except ValueError as error:
            raise ConfigError(f"LoRA does not fit the model: {error}") from error


def _name_base(model: Any) -> None:
    """Names the base of adapters by its full path: peft would look up a relative one on the hub from another folder."""
    for adapter in getattr(model, "peft_config", {}).values():
        base = adapter.base_model_name_or_path
        if base and Path(base).is_dir():
            adapter.base_model_name_or_path = os.path.abspath(base)


def has_bf16_backward(loaded: LoadedModel, config: TrainerConfig) -> bool:
    """Says whether the backward pass multiplies in bfloat16."""
    if config.backward == "auto":
        return has_fast_bfloat16(loaded.device)
    return config.backward == "bfloat16"


@contextmanager
def precision(loaded: LoadedModel, config: TrainerConfig) -> Generator[None]:
    """Sets what a training pass runs in: attention by tree, autocast if the settings ask for it, and the dtype of the backward pass."""
    bf16_backward = has_bf16_backward(loaded, config)
    attention = tree_attention(loaded.model, bf16_backward=bf16_backward)
    with attention, bfloat16_backward(loaded.model, enabled=bf16_backward), _autocast(loaded, config):
        yield


def _autocast(loaded: LoadedModel, config: TrainerConfig) -> torch.autocast:
    """Returns the dtype of training; sampling has the same, so that their log-probs can be compared."""
    return torch.autocast(
        loaded.device.type,
        dtype=torch.bfloat16,
        enabled=autocasts(config.autocast, loaded.device),
        # Weights are cast once for all passes. Of a sharded model that would keep all of it.
        cache_enabled=not is_sharded(loaded.model),
    )
