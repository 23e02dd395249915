"""Writes a model for others: a folder that plain transformers loads, or merged weights alone for a server that samples."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import GenerationConfig
from transformers.core_model_loading import revert_weight_conversion

from gradus.core import ConfigError, PolicyError
from gradus.core.documents import Results, read_document
from gradus.core.files import replaceable, write_folder
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.policies.local.folders import adapter_base
from gradus.policies.local.gguf import copy_source, source_facts
from gradus.policies.local.gguf_writer import FORMATS, check_gguf, gguf_name, write_gguf
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.model_card import CardContents, example_question, model_card
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import ModelSettings, free_sampling, read_settings, write_settings
from gradus.policies.one_at_a_time import quiet_transformers

_DTYPES = ("float32", "bfloat16", "float16", "auto")
# nats, merged against unmerged in float32; rounding alone makes 2e-4 of it at 0.5 billion parameters
_LARGEST_GAP = 2e-3


@frozen_record
class ExportResult:
    """What was written."""

    path: Path
    merged: bool
    # Largest difference of log-probs between merged and unmerged in float32, nats; None if nothing was merged.
    gap: float | None
    # The format, if it is a GGUF file.
    dtype: str
    parameters: int


def export_model(
    folder: str | Path,
    out: str | Path,
    *,
    merge: bool = True,
    dtype: str = "auto",
    results: Results | None = None,
    overwrite: bool = False,
    gguf: str | None = None,
) -> ExportResult:
    """Write the model in ``folder`` (plain, or a LoRA folder) to ``out``, whole or not at all.

    Adapters are merged in float32, compared with the unmerged model there, and rounded to ``dtype`` afterwards (``auto``: that
    of the base model). The sampling that the model was trained with goes to the generation config, ``results`` (a run's results.json) to the model card.
    ``gguf``: write a GGUF file in this format (f16, q8_0 or q4_0) and a Modelfile instead, quantized from float32.

    Raises:
        ConfigError: no model in ``folder``, a model of which no GGUF file is written, or ``out`` is not empty and ``overwrite`` is not set, or is the folder that is worked in.
        PolicyError: merged and unmerged disagree by more than 0.002 nats.
        StorageError: ``out`` cannot be written.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype is float32, bfloat16, float16 or auto, got {dtype!r}")
    if gguf not in (None, *FORMATS):
        raise ConfigError(f"gguf is {', '.join(FORMATS)}, got {gguf!r}")
    source = Path(folder).expanduser()
    target = replaceable(Path(out).expanduser())
    occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if occupied and not overwrite:
        raise ConfigError(f"{target} exists and is not empty; choose another folder, or give --overwrite")
    base = adapter_base(source)
    # Adapters are merged into the weights as they were published.
    loaded = load_model(source, dtype="float32", device="cpu", keep_history=True, quantize="none")
    model = loaded.model
    gap = None
    if gguf is not None:
        merge = True
        dtype = "float32"
        check_gguf(loaded)
    if base is not None and merge:
        model, gap = _merge(loaded)
    # A model that was published in bfloat16 and trained in float32 goes back to what its users load.
    if dtype == "auto":
        dtype = loaded.settings.dtype or "float32"
    model.to(getattr(torch, dtype))
    settings = read_settings(source) or ModelSettings()  # loading keeps history in any case
    exported = replace(
        loaded,
        model=model,
        tokenizer=loaded.renderer.dated_tokenizer(),
        settings=settings.model_copy(update={"quantize": "none", "dtype": dtype}),
        path=base or str(source),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result = ExportResult(path=target, merged=gap is not None, gap=gap, dtype=gguf or dtype, parameters=parameters)
    file = None if gguf is None else gguf_name(target.name, gguf)
    card = _card(exported, result, source, results, file)

    def fill(aside: Path) -> None:
        if gguf is None:
            _write_folder(aside, exported)
        else:
            write_gguf(aside / gguf_name(target.name, gguf), gguf, exported)
        (aside / "README.md").write_text(card, encoding="utf-8")  # in place of peft's

    write_folder(target, fill)
    return result


def _card(exported: LoadedModel, result: ExportResult, source: Path, results: Results | None, gguf: str | None) -> str:
    settings = exported.settings
    contents = CardContents(
        title=result.path.name,
        facts=[*_facts(result, source, exported.path), *source_facts(exported.path)],
        results=results,
        adapters_of=None if result.merged else adapter_base(source),
        question=example_question(exported.renderer, settings.system_prompt),
        template_options=settings.template_options,
        gguf=gguf,
    )
    return model_card(contents)


def logp_diff(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference of the log-probs that two tensors of logits (..., V) imply, nats."""
    difference = one.float().log_softmax(-1) - other.float().log_softmax(-1)
    return float(difference.abs().max())


def _merge(loaded: LoadedModel) -> tuple[Any, float]:
    """Merge the adapters; compare the log-probs of some tokens before and after."""
    adapted = loaded.model.eval()
    vocabulary = adapted.get_input_embeddings().weight.shape[0]
    probe = [(7 * place + 3) % vocabulary for place in range(32)]
    ids = torch.tensor([probe])
    with torch.inference_mode():
        before = adapted(input_ids=ids, use_cache=False).logits
    # ``safe_merge`` refuses weights that are not numbers.
    merged = adapted.merge_and_unload(safe_merge=True)
    with torch.inference_mode():
        gap = logp_diff(before, merged(input_ids=ids, use_cache=False).logits)
    if not gap <= _LARGEST_GAP:  # also if it is not a number
        raise PolicyError(f"merged and unmerged log-probs differ by {gap:.2g} nats, expected at most {_LARGEST_GAP}")
    return merged, gap


def _facts(result: ExportResult, source: Path, base: str) -> list[str]:
    """Lines of the card on the model: its size, and the adapters that it has or had."""
    size = f"{result.parameters:,} parameters, {result.dtype}"
    if adapter_base(source) is None:
        return [size]
    adapter = read_document(source / "adapter_config.json", JsonDict)
    state = (
        "not merged" if result.gap is None else f"merged into the weights (log-probs agree to {result.gap:.1e} nats)"
    )
    public_name = Path(base).name if Path(base).exists() else base  # a path of this machine is nobody else's business
    return [
        size,
        f"trained from `{public_name}`",
        f"LoRA of rank {adapter.get('r')} and alpha {adapter.get('lora_alpha')}, {state}",
    ]


def generation_config(loaded: LoadedModel, config: SamplingConfig) -> GenerationConfig:
    """Returns what transformers generates by if it stops where the policy stopped and draws as it drew."""
    stops = sorted(loaded.renderer.stop_ids)
    pad = loaded.tokenizer.pad_token_id
    values: JsonDict = {
        "eos_token_id": stops,
        "pad_token_id": stops[0] if pad is None else pad,
        "max_new_tokens": config.max_new_tokens,
        "do_sample": not config.greedy,
    }
    if loaded.tokenizer.bos_token_id is not None:
        values["bos_token_id"] = loaded.tokenizer.bos_token_id
    if not config.greedy:
        # transformers warns of settings that greedy decoding does not use.
        values |= {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
    return GenerationConfig(**values)


def write_model(folder: Path, loaded: LoadedModel, state: Mapping[str, Tensor] | None = None) -> None:
    """Writes weights (adapters alone if the model wears some), tokenizer, and what the model was trained with into ``folder``.

    ``state``: the weights, if they are not the model's own (a sharded model).
    """
    with quiet_transformers():
        loaded.model.save_pretrained(folder, state_dict=state)
        loaded.tokenizer.save_pretrained(folder)
    write_settings(folder, loaded.settings)
    copy_source(loaded.path, folder)


def _write_folder(folder: Path, exported: LoadedModel) -> None:
    causal: Any = causal_model(exported.model)
    causal.generation_config = generation_config(exported, free_sampling(exported.settings))
    write_model(folder, exported)
    causal.generation_config.save_pretrained(folder)  # saving adapters does not write it


@torch.no_grad()
def write_merged(folder: Path, model: Any, state: Mapping[str, Tensor] | None = None) -> None:
    """Writes config and weights of ``model`` with its adapters merged into ``folder``.

    ``state``: the weights, if they are not the model's own (a model without adapters that is sharded).

    A head that shares its weights with the embeddings is written as a tensor of its own: vLLM (0.32 on CPUs) goes on with the old
    head after a reload otherwise, because it packed a copy when it started.
    """
    causal: Any = causal_model(model)
    config = copy.deepcopy(causal.config)
    if getattr(config, "quantization_config", None) is not None:  # the written weights are not quantized
        del config.quantization_config
    config.save_pretrained(folder)
    if causal.can_generate():
        causal.generation_config.save_pretrained(folder)
    weights: Mapping[str, Tensor] = causal.state_dict() if state is None else state
    merged = dict(_merged_tensors(causal, weights))
    if getattr(causal, "_weight_conversions", None):  # names differ between memory and files
        merged = dict(revert_weight_conversion(causal, merged))  # pyright: ignore[reportUnknownArgumentType]
    save_torch_state_dict(merged, folder)


def _merged_tensors(causal: Any, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names as without adapters and tensors as without quantization; one that another name has already is copied."""
    modules = dict(causal.named_modules())
    addresses: set[int] = set()
    for name, value in state.items():
        if ".lora_" in name or ".weight." in name:  # adapters, and what four bits need besides
            continue
        layer_name = name.removesuffix(".base_layer.weight")
        merged = value
        if not value.is_floating_point():
            merged = _dequantized(modules.get(name.removesuffix(".weight")), value)
        if layer_name != name:
            layer = modules[layer_name]
            for adapter in layer.active_adapters:
                merged = merged + layer.get_delta_weight(adapter).to(merged.dtype)
        elif value.data_ptr() in addresses:
            merged = value.clone()
        addresses.add(value.data_ptr())
        yield name.replace(".base_layer.", "."), merged.cpu()


def _dequantized(layer: Any, value: Tensor) -> Tensor:
    """The weight of a layer in four bits as its products take it; any other tensor of integers as it is."""
    state = getattr(getattr(layer, "weight", None), "quant_state", None)
    if state is None:
        return value
    functional: Any = import_module("bitsandbytes.functional")  # an extra
    return functional.dequantize_4bit(layer.weight.data, state).to(layer.compute_dtype)
