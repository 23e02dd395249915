"""The grounds of a plan of memory: a machine or card, the shape of a model (no weights are loaded), lengths of texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import psutil

from gradus.core import ConfigError
from gradus.core.errors import first_line
from gradus.core.frozen_record import frozen_record
from gradus.policies.local.folders import adapter_base
from gradus.policies.local.loading import context_length
from gradus.training.engine.forward import finishes_logits

GIB = 2**30
_KEPT_FREE = 0.92  # of a card: the rest is the driver's and the libraries'


@frozen_record
class Hardware:
    """A device: ``kind`` is cpu or cuda, ``memory`` the bytes that a run may use."""

    name: str
    kind: str
    memory: float


def this_machine() -> Hardware:
    """The card of this machine and its free memory, or its processor."""
    import torch

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return Hardware(name=torch.cuda.get_device_name(), kind="cuda", memory=float(free))
    return Hardware(name="this processor", kind="cpu", memory=_available_memory())


def card_of(memory: str) -> Hardware:
    """A card of ``24GB`` or ``24``. Cards are sold by GiB, whatever is printed on them. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:G|GB|GiB)?\s*", memory, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--memory takes gigabytes, as in 24GB, got {memory!r}")
    return Hardware(name=f"a card of {memory}", kind="cuda", memory=_KEPT_FREE * float(match[1]) * GIB)


def _available_memory() -> float:
    """Bytes that new programs may use; a control group's limit if it is lower."""
    free = float(psutil.virtual_memory().available)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        return min(free, float(text) - used)
    return free


@frozen_record
class ModelShape:
    """A decoder's shape."""

    name: str
    architecture: str
    parameters: int
    matrices: int  # parameters of the layers' linear layers
    hidden: int
    layers: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int | None
    finishes_logits: bool  # caps or scales what its head gives
    adapter_width: int  # sum over adapted matrices of inputs plus outputs: times the rank gives LoRA's parameters

    @property
    def kv(self) -> int:
        """Numbers of a layer's keys, for one token."""
        return self.kv_heads * self.head_dim


@frozen_record
class Lengths:
    """Tokens of one turn: what is read and what is sampled, at most."""

    prompt: int  # the mean of all turns, the first of which has the system prompt
    answer: int
    turns: int = 1
    first: int | None = None  # what is read in the first turn; as much as in any other if it is None

    @property
    def shared(self) -> int:
        """Tokens that a group has in common; later prompts depend on each member's answers."""
        return self.prompt if self.first is None else min(self.first, self.turns * self.prompt)

    @property
    def whole(self) -> int:
        """The longest sequence."""
        return self.turns * (self.prompt + self.answer)


def read_shape(path_or_name: str | Path, *, online: bool = True) -> ModelShape:
    """The shape of a model from its config; its weights are neither read nor downloaded. Raises ConfigError.

    ``online``: a config that is not on this disk may be asked for by its name on the hub.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    base = adapter_base(path_or_name) or path_or_name
    try:
        config = cast(Any, AutoConfig).from_pretrained(base, local_files_only=not online)
        # Weights on this device have shapes and take no memory.
        with torch.device("meta"):
            model = cast(Any, AutoModelForCausalLM).from_config(config)
    except Exception as error:  # a value of the wrong kind can fail anywhere in a model's own code
        raise ConfigError(
            f"the config of {path_or_name} cannot be read: {type(error).__name__}: {first_line(error)} "
            "Expected a model's folder, a FILE.gguf, or a name of the Hub while there is a network."
        ) from None  # a traceback of the Hub's client hides the sentence
    text = config.get_text_config()  # of a model that also sees, the decoder's part
    heads = getattr(text, "num_attention_heads", None) or 0  # Mamba has none
    head = model.get_output_embeddings()
    # GPT-2 calls its linear layers Conv1D.
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    linear = [layer.weight for layer in layers if layer is not head]
    head_dim = getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0)
    return ModelShape(
        name=str(path_or_name),
        architecture=config.model_type,
        parameters=model.num_parameters(),
        matrices=sum(weight.numel() for weight in linear),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        context=context_length(config),
        finishes_logits=finishes_logits(text),
        adapter_width=sum(sum(weight.shape) for weight in linear),
    )
