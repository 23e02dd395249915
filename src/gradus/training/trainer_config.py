"""Settings that SFT and GRPO share. Nothing here loads a model's code, so that a recipe is read and refused at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gradus.core import ConfigError
from gradus.policies.local.cpu.support import Autocast
from gradus.policies.local.settings import Attention
from gradus.training.law_names import LawName

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(BaseModel):
    """The optimizer and its schedule."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """`muon` orthogonalizes the momentum of the matrices inside the blocks and leaves the rest to AdamW: a small model trained from nothing learns in about half the steps. `adamw_8bit` keeps AdamW's moments in eight bits, by bitsandbytes."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate, AdamW's if there are two."""
    muon_lr: float = Field(default=0.02, gt=0)
    """Muon's peak rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls from its peak."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of all steps over which the rate rises linearly from 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak to which a falling schedule comes after its last step, as in transformers."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's decay rates of the two moments. With a first of 0 Muon has no momentum either, else 0.95 (Nesterov's)."""
    grad_clip: float = Field(default=1.0, ge=0)
    """Bound on the norm of the whole gradient; 0 leaves it alone."""


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": _cosine,
}


# A setting, which of its values others have an effect with, and those others.
OWNED_SETTINGS = (
    ("optimizer", ("muon",), ("muon_lr",)),
    ("schedule", ("cosine", "linear"), ("min_lr_ratio",)),
    ("sampler", ("http", "vllm"), ("sampler_url",)),
)


class LoraConfig(BaseModel):
    """Low-rank adapters (arXiv 2106.09685), by peft."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rank: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    alpha: int = Field(default=32, gt=0)
    """The adapters are scaled by alpha / rank."""
    dropout: float = 0.0
    """Must be 0."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of layers, as in `q_proj`, or `all-linear`."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, value: float) -> float:
        """The sampler has none, so the ratio would differ from 1 before the first update."""
        if value:
            raise ValueError(
                f"dropout of adapters must be 0, got {value:g}: the trainer would not compute what was sampled; leave it out"
            )
        return value


class LawsConfig(BaseModel):
    """Which laws of a run are not checked (docs/doctor.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    off: tuple[LawName, ...] = ()
    """Laws that are not checked; a broken one stops the run."""


class TrainerConfig(OptimizerConfig):
    """Settings that SFT and GRPO share.

    ``resources``: names of those that say what a run may use. They change results by rounding at most, so a run may go on with others.
    """

    resources: ClassVar[frozenset[str]] = frozenset(["token_budget", "gradient_checkpointing", "threads", "laws"])

    seed: int = 0
    """Seed of the stage; the run's own by default."""
    token_budget: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass; it bounds memory and changes no result."""
    dtype: str = "auto"
    """Of the weights: float32, bfloat16, or `auto`, float32 on a CPU and bfloat16 on a GPU."""
    device: str = "auto"
    """`auto` is the first GPU if there is one."""
    attention: Attention | None = None
    """The kernel; what the model was trained with, else sdpa if the architecture has it. `flash_attention_2` needs a GPU and the package flash-attn; most models are trained by Gradus's own attention over shared prompts all the same."""
    autocast: Autocast = False
    """Compute in bfloat16 around float32 weights; `auto` does so on a GPU, and on a CPU with instructions for it."""
    backward: Literal["float32", "bfloat16", "auto"] = "float32"
    """`bfloat16` takes the backward products in it: about half a per cent of noise in the gradient, none in the log-probs. `auto` does so on a CPU with instructions for it."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; torch's own choice by default."""
    lora: LoraConfig | None = None
    """Train low-rank adapters and leave the weights alone; `true` for the default ones."""
    quantize: Literal["4bit"] | None = None
    """Keep the weights below the adapters in four bits (QLoRA, by bitsandbytes); needs `lora`."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step is always kept, and the one before it."""
    laws: LawsConfig = LawsConfig()
    """Identities that are checked while the run goes on."""

    @field_validator("lora", mode="before")
    @classmethod
    def _lora_by_default(cls, value: Any) -> Any:
        """``true`` is an adapter of the default rank, ``false`` none."""
        if isinstance(value, bool):
            return LoraConfig() if value else None
        return value

    @property
    def weights_dtype(self) -> str:
        """The dtype that weights are loaded in: autocast computes around float32 weights."""
        return "float32" if self.autocast else self.dtype

    def check_served(self) -> None:
        """Raises ConfigError for adapters other than those of a Tinker server, which takes no more than their rank."""
        lora = self.lora or LoraConfig()
        if lora != LoraConfig(rank=lora.rank):
            raise ConfigError(
                "a Tinker server cannot keep this setting: its adapters are on all linear layers, scaled by 32 / rank; leave out "
                "lora.alpha and lora.targets"
            )

    @model_validator(mode="after")
    def _refuse_settings_of_other_choices(self) -> Self:
        for key, owners, settings in OWNED_SETTINGS:
            choice = getattr(self, key, owners[0])
            if choice not in owners:
                idle = self.model_fields_set.intersection(settings)
                refuse_without_effect(idle, f"with {key} = {choice!r}; leave it out, or set {key} = {owners[0]!r}")
        return self

    @model_validator(mode="after")
    def _adapt_what_is_quantized(self) -> Self:
        if self.quantize is not None and self.lora is None:
            raise ValueError("weights in four bits cannot be trained; set lora, or leave quantize out")
        return self


def refuse_without_effect(settings: Collection[str], why: str) -> None:
    """Raises ValueError if there are any ``settings``."""
    if settings:
        raise ValueError(f"{', '.join(sorted(settings))} has no effect {why}")
