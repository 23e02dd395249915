"""What training may use outside its own process: trackers of its metrics, and a server that samples for it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors.torch import load_file, save_file

from gradus.core import Policy
from gradus.core.checksums import write_checksums
from gradus.policies.local.loading import LoadedModel
from gradus.policies.vllm.http_sampler import HttpSampler, served_model
from gradus.training.config import GrpoConfig
from gradus.training.distributed.processes import barrier, world
from gradus.training.engine.loss_step import prepare_model
from gradus.training.run.checkpoints import save_model
from gradus.training.run.trackers import Trackers, open_trackers

__all__ = ["PushWeights", "served_sampler", "track", "weights_to_server"]

PushWeights = Callable[[LoadedModel, int], None]


def track(names: tuple[str, ...], folder: Path, config: BaseModel) -> Trackers:
    """The trackers of a training stage, writing into its folder; none in processes that write nothing."""
    return open_trackers(names if world().main else (), folder, name=folder.name, config=config.model_dump(mode="json"))


def served_sampler(
    model: str | LoadedModel, config: GrpoConfig, folder: Path
) -> tuple[str | LoadedModel, Policy | None, PushWeights | None]:
    """The model to train, the policy that samples in its place, and what brings that new weights; as given, None and None for local.

    ``http`` and ``vllm`` are one dialect, see :class:`~gradus.policies.vllm.http_sampler.HttpSampler`. A server that wants a key gets
    VLLM_API_KEY. Raises ConfigError if it cannot be reached or gives no token ids and log-probs.
    """
    if config.sampler == "local":
        return model, None, None
    loaded = prepare_model(model, config)
    assert config.sampler_url is not None  # the settings see to it
    key = os.environ.get("VLLM_API_KEY")
    policy = HttpSampler(
        config.sampler_model or served_model(config.sampler_url, api_key=key),
        base_url=config.sampler_url,
        renderer=loaded.renderer,
        sampling=config.sampling,
        api_key=key,
        name="grpo",
    )
    return loaded, policy, weights_to_server(policy, folder / "sampler", every=config.sync_every)


def weights_to_server(policy: HttpSampler, folder: Path, *, every: int = 1) -> PushWeights:
    """Write the weights to ``folder`` and let the server read them: at the first call, then at every ``every``-th step.

    The server must see the same files. Process 0 alone does it; the others wait.
    """
    begun = False

    def push_weights(loaded: LoadedModel, step: int) -> None:
        nonlocal begun
        if begun and step % every:
            return
        begun = True
        model = _without_adapters(loaded.model) if world().main else loaded.model
        save_model(folder, model, loaded.tokenizer)
        if world().main:
            _write_tied_head(folder, model)
            policy.reload(folder)
        barrier()

    return push_weights


@torch.no_grad()
def _without_adapters(model: torch.nn.Module) -> torch.nn.Module:
    """The model without adapters: merged into a copy, so that the weights that are trained are not touched."""
    if not hasattr(model, "peft_config"):
        return model
    return copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]


def _write_tied_head(folder: Path, model: Any) -> None:
    """Write a head that shares its weights with the embeddings as a tensor of its own.

    Without it vLLM (0.32 on CPUs) goes on with the old head after a reload: it had packed a copy when it started.
    """
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or not getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False):
        return
    names = {id(module): f"{name}.weight" for name, module in model.named_modules()}
    head_name, name = names[id(head)], names[id(embeddings)]
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text(encoding="utf-8")) if index_file.exists() else {"weight_map": {}}
    file = folder / index["weight_map"].get(name, "model.safetensors")
    tensors = load_file(file)
    if name in tensors and head_name not in tensors:
        save_file({**tensors, head_name: tensors[name].clone()}, file, metadata={"format": "pt"})
        index["weight_map"][head_name] = file.name
        if index_file.exists():
            index_file.write_text(json.dumps(index), encoding="utf-8")
        write_checksums(folder)
