"""Writing a model with its adapters merged, some tensors at a time: no second model is made, and no weight is changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from gradus.policies.local.llama_forward import causal_model

_SHARD_BYTES = 2**30


@torch.no_grad()
def write_merged(folder: Path, model: Any, state: Mapping[str, Tensor] | None = None) -> None:
    """Write config and weights of ``model`` with its adapters merged into ``folder``, in files of about a gigabyte.

    ``state``: the weights, if they are not the model's own (a model without adapters that is sharded).

    A head that shares its weights with the embeddings is written as a tensor of its own: vLLM (0.32 on CPUs) goes on with the old
    head after a reload otherwise, because it packed a copy when it started.
    """
    causal: Any = causal_model(model)
    config = copy.deepcopy(causal.config)
    if getattr(config, "quantization_config", None) is not None:  # what is written is not
        del config.quantization_config
    config.save_pretrained(folder)
    if causal.can_generate():
        causal.generation_config.save_pretrained(folder)
    # Names that change between memory and files may depend on several tensors, so these are written at once.
    converted = bool(getattr(causal, "_weight_conversions", None))
    places: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    size = total = 0

    def write() -> None:
        if shard:
            file = f"model-{len(set(places.values())) + 1:05d}.safetensors"
            named = dict(revert_weight_conversion(causal, shard)) if converted else shard
            save_file({name: value.contiguous() for name, value in named.items()}, folder / file, {"format": "pt"})
            places.update(dict.fromkeys(named, file))

    for name, value in _merged_tensors(causal, causal.state_dict() if state is None else state):
        shard[name] = value
        size += value.nbytes
        total += value.nbytes
        if size >= _SHARD_BYTES and not converted:
            write()
            shard, size = {}, 0
    write()
    if len(files := sorted(folder.glob("model-*.safetensors"))) == 1:
        files[0].rename(folder / "model.safetensors")
        return
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _merged_tensors(causal: Any, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names as without adapters and tensors as without quantization; one that another name has already is copied."""
    modules = dict(causal.named_modules())
    seen: set[int] = set()
    for name, value in state.items():
        if ".lora_" in name or ".weight." in name:  # adapters, and what four bits need besides
            continue
        owner = name.removesuffix(".base_layer.weight")
        merged = value
        if not value.is_floating_point():
            merged = _dequantized(modules.get(name.removesuffix(".weight")), value)
        if owner != name:
            for adapter in modules[owner].active_adapters:
                merged = merged + modules[owner].get_delta_weight(adapter).to(merged.dtype)
        elif value.data_ptr() in seen:
            merged = value.clone()
        seen.add(value.data_ptr())
        yield name.replace(".base_layer.", "."), merged


def _dequantized(layer: Any, value: Tensor) -> Tensor:
    """The weight of a layer in four bits as its products take it; any other tensor of integers as it is."""
    state = getattr(getattr(layer, "weight", None), "quant_state", None)
    if layer is None or state is None:
        return value
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports] - an extra

    return dequantize_4bit(layer.weight.data, state).to(layer.compute_dtype)
