"""Prepares the model, sets the precision, and takes one optimizer update, for SFT and GRPO alike."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradus.core import ConfigError, GradusError, child_seed
from gradus.core.errors import first_line
from gradus.policies.local.cpu.support import autocasts, has_fast_bfloat16
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.one_at_a_time import quiet_transformers, torch_seeded
from gradus.training.data.microbatches import MicroBatch
from gradus.training.distributed.processes import gather, sum_gradients, world
from gradus.training.engine.bfloat16_backward import bfloat16_backward
from gradus.training.engine.forward import disable_dropout
from gradus.training.engine.fsdp import idle_passes, is_sharded
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.optimizers import clip_gradients, trainable
from gradus.training.engine.tree_support import tree_attention
from gradus.training.trainer_config import LoraConfig, TrainerConfig

T = TypeVar("T")


class TrainingError(GradusError):
    """Training cannot go on: a figure is not finite, or sampler and trainer disagree."""


def prepare_model(source: LoadedModel | str | Path, config: TrainerConfig) -> LoadedModel:
    """Load (or take) the model, put adapters on it, and make train mode and eval mode the same function.

    A model in memory stays in the dtype, on the device and with the attention that it was loaded with.
    """
    _set_threads(config)
    if isinstance(source, LoadedModel):
        loaded = source
    else:
        device = world().device or config.device if config.device == "auto" else config.device
        options = {"dtype": config.weights_dtype, "attention": config.attention, "quantize": config.quantize}
        loaded = load_model(source, device=device, **options)
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
    trainable(model)
    return replace(loaded, model=model, autocast=autocasts(config.autocast, loaded.device))


def _refuse_quantized(loaded: LoadedModel, config: TrainerConfig) -> None:
    """Raise ConfigError for weights that cannot move: without adapters their norms and embeddings alone would be trained."""
    quantizer = getattr(causal_model(loaded.model), "hf_quantizer", None)
    if quantizer is None or (quantizer.is_trainable and config.lora is not None):
        return
    method = getattr(quantizer.quantization_config.quant_method, "value", quantizer.quantization_config.quant_method)
    way_out = "set lora, or name the model in 16 bits" if quantizer.is_trainable else "name the model in 16 bits"
    raise ConfigError(f"the weights of {loaded.path} are quantized ({method}) and cannot be trained; {way_out}")


def checkpoint_activations(model: Any) -> None:
    """Forget activations in the forward pass and compute them again in the backward pass: less memory, more time."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.enable_input_require_grads()
    # transformers checkpoints what is in train mode. There some layers draw noise that has no module of its own (dropout, routing).
    model.training = True
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module.training = True
            module._gradient_checkpointing_func = partial(_in_eval_mode, module, module._gradient_checkpointing_func)


def _in_eval_mode(module: nn.Module, checkpointed: Callable[..., Any], run: Callable[..., Any], *args: Any) -> Any:
    """``checkpointed(run, *args)``, in which ``module`` itself is in eval mode whenever it runs."""

    def quiet(*inputs: Any, **options: Any) -> Any:
        training, module.training = module.training, False
        try:
            return run(*inputs, **options)
        finally:
            module.training = training

    return checkpointed(quiet, *args)


def _take_adapters(model: Any, config: LoraConfig | None) -> None:
    """Go on training the adapters that a model was loaded with. Raises ConfigError if they are not those that are asked for."""
    adapter = model.peft_config[model.active_adapter]
    if adapter.use_dora or adapter.modules_to_save:
        raise ConfigError("the model's adapters are not plain LoRA; merge them first with gradus export")
    if config is None or (config.rank, config.alpha) != (adapter.r, adapter.lora_alpha):
        asked = "lora is not set" if config is None else f"lora asks for rank {config.rank} and alpha {config.alpha:g}"
        raise ConfigError(
            f"the model has adapters of rank {adapter.r} and alpha {adapter.lora_alpha:g}, but {asked}; set lora to those, "
            "or merge them first with gradus export"
        )
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)


def _with_lora(model: Any, config: LoraConfig, seed: int) -> Any:
    with quiet_transformers():
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    shape = {"r": config.rank, "lora_alpha": config.alpha, "target_modules": targets}
    wanted = PeftConfig(**shape, lora_dropout=0.0, task_type="CAUSAL_LM")
    with torch_seeded(child_seed(seed, "lora")), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers in words that are being renamed
        try:
            return get_peft_model(model, wanted)
        except ValueError as error:
            raise ConfigError(f"LoRA does not fit the model: {error}") from error


def _name_base(model: Any) -> None:
    """Let adapters name a base in a folder by its whole path, so that they can be loaded from another folder too: a relative one
    would be looked up on the hub there."""
    for adapter in getattr(model, "peft_config", {}).values():
        base = adapter.base_model_name_or_path
        if base and Path(base).is_dir():
            adapter.base_model_name_or_path = os.path.abspath(base)


@contextmanager
def precision(loaded: LoadedModel, config: TrainerConfig) -> Iterator[None]:
    """Returns what a training pass runs in: tree attention, autocast if it was asked for, and the backward pass's own dtype."""
    bf16_backward = config.backward == "bfloat16" or (config.backward == "auto" and has_fast_bfloat16(loaded.device))
    attention = tree_attention(loaded.model, bf16_backward=bf16_backward)
    with attention, bfloat16_backward(loaded.model, enabled=bf16_backward), autocast(loaded, config):
        yield


def autocast(loaded: LoadedModel, config: TrainerConfig) -> torch.autocast:
    """The dtype of training; sampling has the same, so that their log-probs can be compared.

    Weights are cast once for all passes; of a model in parts at every use, or all of it would be kept.
    """
    keep = not is_sharded(loaded.model)
    return torch.autocast(
        loaded.device.type, dtype=torch.bfloat16, enabled=autocasts(config.autocast, loaded.device), cache_enabled=keep
    )


def _set_threads(config: TrainerConfig) -> None:
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def run_update(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    loss: Callable[[MicroBatch], Tensor],
    config: TrainerConfig,
    lr: float,
    *,
    before_step: Callable[[], None] | None = None,
) -> tuple[float, float]:
    """One optimizer update over microbatches whose losses add up, over those of all processes if there are several.

    ``loss`` must divide by figures of the whole step, so that the gradient does not depend on the cut. ``before_step`` may
    refuse the update by raising. Returns the gradient's norm before clipping and the seconds the optimizer took. Raises
    TrainingError if the gradient is not finite; the weights stay as they were.
    """
    _check_holds(optimizer, loaded.model)
    optimizer.zero_grad(set_to_none=True)
    parts = is_sharded(loaded.model)  # every pass may add up its own gradients
    if parts:
        idle_passes(loaded, len(batches))
    for batch in batches:
        loss(batch.to(loaded.device)).backward()
    if not parts:
        sum_gradients([master_of(parameter) for parameter in trainable(loaded.model).values()])
    if before_step is not None:
        before_step()
    started = time.perf_counter()
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    norm = _finite(float(clip_gradients(loaded.model, config.grad_clip)))
    _check_same(norm)
    _step(optimizer)
    optimizer.zero_grad(set_to_none=True)
    return norm, time.perf_counter() - started


def _check_holds(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if any(id(master_of(parameter)) not in held for parameter in trainable(model).values()):
        raise TrainingError(
            "the optimizer holds other parameters than the model's, so the model would not move; make the optimizer after the model is "
            "loaded, moved, sharded and has its adapters"
        )


def _check_same(norm: float) -> None:
    norms = gather([norm])
    if max(norms) - min(norms) > 1e-3 * max(norms):
        raise TrainingError(
            f"the gradients of the processes differ after they were added up (norms {min(norms):.4g} to {max(norms):.4g}), so the "
            "gradient of a process is lost; the weights were left as they are"
        )


def _step(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except torch.OutOfMemoryError as error:  # a smaller pass would not help
        raise TrainingError(f"no memory is left for the optimizer's moments ({first_line(error)}); set lora") from None


def _finite(norm: float) -> float:
    if not math.isfinite(norm):
        raise TrainingError(
            f"the gradient's norm is {norm}; the weights were left as they are. Lower lr, or train in float32"
        )
    return norm


class PassBudget:
    """Tokens of a pass: ``token_budget``, halved whenever memory runs out, unless there are other processes.

    No result depends on how a step is cut into passes, so a run goes on as if it had begun with the smaller budget.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.tokens = config.token_budget
        self._halves = world().size == 1  # other processes would not know

    def spend(self, work: Callable[[int], T], longest: int) -> T:
        """``work(tokens)``, begun again with half the tokens as often as memory runs out.

        ``longest``: tokens of the longest sequence, which is never cut. Raises TrainingError if no smaller pass is left to try.
        """
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError as error:
                reason = first_line(error) or "out of memory"
            # The exception is gone, and with it the tensors of the pass.
            if torch.cuda.is_available():
                gc.collect()
                torch.cuda.empty_cache()
            if not self._halves or self.tokens <= longest:
                raise TrainingError(
                    f"out of memory in a pass of {max(self.tokens, longest)} tokens ({reason}); lower token_budget, set "
                    "gradient_checkpointing = true, set lora (adapters need few gradients and moments), or shorten the sequences (the "
                    f"longest has {longest} tokens)"
                )
            self.tokens = max(self.tokens // 2, longest)
            print(f"out of memory: going on with token_budget = {self.tokens}", file=sys.stderr)
