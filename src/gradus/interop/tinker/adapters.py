"""LoRA adapters on one base model: one place on the model, into which any adapter's weights are put."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from gradus.core.frozen_record import frozen_record
from gradus.policies.local.llama_forward import causal_model
from gradus.policies.local.loading import LoadedModel
from gradus.policies.one_at_a_time import torch_seeded

ALPHA = 32.0  # the hosted service's, and SkyRL's; the product of an adapter is scaled by ALPHA / rank
Weights = Mapping[str, Tensor]


@frozen_record
class AdapterShape:
    """The size of an adapter, and the layers that it is on."""

    rank: int
    # The names are the SDK's.
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


class AdapterSlot:
    """A base model with room for one adapter at a time, of any shape. Not for several threads."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._layers = _linear_layers(causal_model(loaded.model))
        self._names = count()
        self._name = ""
        self.shape: AdapterShape | None = None

    def supports(self, shape: AdapterShape) -> bool:
        """Says whether the base has any layer for adapters of this shape."""
        return bool(self._targets(shape))

    def fresh(self, shape: AdapterShape, seed: int) -> dict[str, Tensor]:
        """Returns the weights of a new adapter, as peft draws them: its product is zero."""
        with torch_seeded(seed):
            self._make_room(shape)
        return {name: parameter.detach().clone() for name, parameter in self._parameters().items()}

    @contextmanager
    def wearing(self, shape: AdapterShape | None, weights: Weights) -> Generator[tuple[LoadedModel, Weights]]:
        """The model with an adapter's weights, and the parameters that hold them. ``shape`` None: the bare base."""
        if shape is None:
            with _bare(self._loaded.model):
                yield self._loaded, {}
            return
        if shape != self.shape:
            self._make_room(shape)
        parameters = self._parameters()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        yield self._loaded, parameters

    def peft_config(self, shape: AdapterShape) -> Any:
        """peft's description of such adapters, which stands beside their weights in a folder."""
        from peft import LoraConfig

        return LoraConfig(
            r=shape.rank,
            lora_alpha=ALPHA,  # pyright: ignore[reportArgumentType]
            target_modules=self._targets(shape),
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
            base_model_name_or_path=self._loaded.path,
        )

    def _targets(self, shape: AdapterShape) -> list[str]:
        return [name for name, part in self._layers.items() if getattr(shape, part)]

    def _make_room(self, shape: AdapterShape) -> None:
        """Puts an adapter of this shape on the model, in place of the one before."""
        from peft import PeftModel

        before = self._name
        self._name = f"slot{next(self._names)}"
        config = self.peft_config(shape)
        with warnings.catch_warnings():
            # peft warns of heads that share weights with embeddings; nothing is merged here.
            warnings.simplefilter("ignore")
            if before:
                self._loaded.model.add_adapter(self._name, config)
                self._loaded.model.set_adapter(self._name)
                self._loaded.model.delete_adapter(before)
            else:
                wrapped = PeftModel(self._loaded.model, config, adapter_name=self._name)
                self._loaded = replace(self._loaded, model=wrapped.eval())
        self.shape = shape

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The adapter's parameters, by the names that they have in a folder of peft's."""
        mark = f".{self._name}."
        parameters: dict[str, nn.Parameter] = {}
        for name, parameter in self._loaded.model.named_parameters():
            if "lora_" in name and mark in name:
                parameters[name.replace(mark, ".")] = parameter
        return parameters


def _linear_layers(causal: Any) -> dict[str, str]:
    """The linear layers by name, each with the field of :class:`AdapterShape` that it belongs to."""
    head = causal.get_output_embeddings()
    layers: dict[str, str] = {}
    for name, module in causal.named_modules():
        if isinstance(module, nn.Linear):
            part = "train_attn" if "attn" in name or "attention" in name else "train_mlp"
            layers[name] = "train_unembed" if module is head else part
    return layers


@contextmanager
def _bare(model: Any) -> Generator[None]:
    if not hasattr(model, "disable_adapter"):
        yield
        return
    with model.disable_adapter():
        yield


class TrainedAdapter:
    """An adapter in training: its weights, the sum of gradients since the last step, and Adam's moments."""

    def __init__(self, shape: AdapterShape, weights: Weights) -> None:
        self.shape = shape
        self.weights = {name: nn.Parameter(weight) for name, weight in weights.items()}
        self._adam = torch.optim.AdamW(self.weights.values())

    def snapshot(self) -> dict[str, Tensor]:
        """The weights as they are now."""
        return {name: weight.detach().clone() for name, weight in self.weights.items()}

    def add_gradients(self, parameters: Weights) -> None:
        """Takes the gradients that passes left in the model's ``parameters``."""
        for name, parameter in parameters.items():
            if parameter.grad is None:
                continue
            weight = self.weights[name]
            weight.grad = parameter.grad if weight.grad is None else weight.grad + parameter.grad
            # The model's parameters are lent to all adapters in turn.
            parameter.grad = None

    def step(self, settings: Mapping[str, Any], clip: float) -> float:
        """Takes one step of AdamW; returns the gradient's norm before it was clipped to ``clip`` (0: not at all).

        Raises ValueError if the norm is not finite; the weights stay as they were, and the gradients are dropped.
        """
        weights = list(self.weights.values())
        norm = float(nn.utils.clip_grad_norm_(weights, clip or math.inf))
        if not math.isfinite(norm):
            self._adam.zero_grad()
            raise ValueError(f"the gradient's norm is {norm}; the weights were left as they are")
        self._adam.param_groups[0].update(settings)
        self._adam.step()
        self._adam.zero_grad()
        return norm

    def moments(self) -> dict[str, Any]:
        """Adam's state, of the weights in their order."""
        return self._adam.state_dict()["state"]

    def restore(self, weights: Weights, moments: Mapping[str, Any]) -> None:
        """Puts weights and Adam's state in place of the present ones; without ``moments`` it begins anew."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(weights[name])
        self._adam.zero_grad()
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
