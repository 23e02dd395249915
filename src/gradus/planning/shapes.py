"""The shape of a model and the lengths of what it reads and says. No weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradus.core import ConfigError
from gradus.policies.local.folders import adapter_base, check_layers
from gradus.policies.local.loading import context_length


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder's shape. ``parameters`` are all; ``matrices`` those of the layers' matrix products, ``adapters`` LoRA's per rank."""

    name: str
    parameters: int
    matrices: int
    hidden: int
    layers: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int | None
    adapter_width: int  # sum over adapted matrices of inputs plus outputs: times the rank gives LoRA's parameters

    @property
    def kv(self) -> int:
        """Numbers of a layer's keys, for one token."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of one turn: what is read (the first turn's includes the system prompt) and what is sampled, at most."""

    prompt: int
    answer: int
    turns: int = 1

    @property
    def whole(self) -> int:
        """The longest sequence."""
        return self.turns * (self.prompt + self.answer)


def read_shape(
    path_or_name: str | Path, *, targets: str | tuple[str, ...] = "all-linear", online: bool = True
) -> ModelShape:
    """The shape of a model from its config; its weights are neither read nor downloaded. Raises ConfigError.

    ``online``: a config that is not on this disk may be asked for by its name on the hub.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    base = adapter_base(path_or_name) or path_or_name
    check_layers(base)
    try:
        config = AutoConfig.from_pretrained(base, local_files_only=not online)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # a value of the wrong kind can fail anywhere in a model's own code
        said = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"the config of {path_or_name} cannot be read: {type(error).__name__}: {said}") from error
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 0  # Mamba has none
    kept = {name: getattr(text, name, None) for name in ("num_key_value_heads", "head_dim", "intermediate_size")}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    }
    adapted = [
        module for name, module in linear.items() if targets == "all-linear" or name.rpartition(".")[2] in targets
    ]
    return ModelShape(
        name=str(path_or_name),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        matrices=sum(module.weight.numel() for module in linear.values()),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        kv_heads=kept["num_key_value_heads"] or heads,
        head_dim=kept["head_dim"] or (text.hidden_size // heads if heads else 0),
        intermediate=kept["intermediate_size"] or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        context=context_length(config),
        adapter_width=sum(module.in_features + module.out_features for module in adapted),
    )
