"""Settings of supervised fine-tuning, and what distillation shares with it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradus.algorithms.distillation import DivergenceName
from gradus.training.trainer_config import TrainerConfig, refuse_without_effect


class LessonConfig(TrainerConfig):
    """Settings that SFT and distillation share."""

    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the rate falls from its peak."""
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Share of all steps over which the rate rises linearly from 0."""
    batch_size: int = Field(default=32, ge=1)
    """Episodes of an optimizer step."""
    validation_every: int | None = Field(default=None, ge=0)
    """Steps between validations; once an epoch by default, 0 for never."""
    history_noise: float = Field(default=0.0, ge=0, le=1)
    """Share of the tokens of answers, of the present one too, that the model reads as other ones, so that it looks at what it was shown and does not copy. What it learns to say stays the teacher's."""
    short_turns: int | None = Field(default=None, ge=1)
    """Turns of each episode in the short steps: if most is learned early, they give more updates in the same time."""
    short_turns_share: float = Field(default=0.7, gt=0, le=1)
    """Share of the steps that are short."""
    observations: float = Field(default=0.0, ge=0)
    """Weight of predicting a token that the environment shows, beside 1 for a token that the teacher says: the model learns how the world answers, also where the teacher does not know."""
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between checkpoints; the last step is always kept."""

    @model_validator(mode="after")
    def _refuse_shares_of_nothing(self) -> Self:
        if self.short_turns is None:
            idle = self.model_fields_set & {"short_turns_share"}
            refuse_without_effect(idle, "without short_turns; set it, or leave the share out")
        return self


class SftConfig(LessonConfig):
    """Supervised fine-tuning. Training ends after ``epochs`` or ``max_steps``, whichever comes first."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the episodes."""
    max_steps: int | None = Field(default=None, ge=1)
    """Most optimizer steps; no limit by default."""
    validation_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of the episodes that is held out, if no validation episodes are given."""
    patience: int | None = Field(default=None, ge=1)
    """Validations in a row that may lower the held-out loss by less than 0.01 nats a token; then, or below 0.01, training ends before its last epoch. Never by default."""

    @model_validator(mode="after")
    def _refuse_patience_without_validation(self) -> Self:
        if not self.validation_share or self.validation_every == 0:
            idle = {"patience"} if self.patience is not None else set[str]()
            refuse_without_effect(idle, "without validation; hold some episodes out, or leave it out")
        return self


class DistillObjective(BaseModel):
    """What distillation learns, from whom, and on which tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    max_steps: int = Field(default=100, ge=1)
    """Optimizer steps."""
    teacher: str | None = None
    """A policy of the environment, best one that states distributions, a model folder with the student's tokenizer, or the address of a vLLM server that has one; the environment's own teacher by default."""
    divergence: DivergenceName = "forward"
    """`forward` covers all that the teacher may say, `reverse` keeps to what it finds likely, `jsd` is the mean of both to their mixture."""
    on_policy: float = Field(default=1.0, ge=0, le=1)
    """Share of the episodes that the student rolls out; the teacher rolls out the others."""
    first_task: int = Field(default=0, ge=0)
    """Index of the first training task that this stage may use."""


class DistillConfig(DistillObjective, LessonConfig):
    """Distillation: the student learns its teacher's distribution of every token, not only what the teacher would have said."""


class DistillTable(DistillObjective):
    """The table ``distill`` of a recipe. Optimizer, precision, adapters and memory are those of the table ``sft``."""

    lr: float | None = Field(default=None, gt=0)
    """Peak learning rate; that of `sft` by default."""
    batch_size: int | None = Field(default=None, ge=1)
    """Episodes of an optimizer step; as many as in `sft` by default."""

    def over(self, sft: SftConfig) -> DistillConfig:
        """The settings of distillation, with what this table leaves to those of SFT."""
        names = (LessonConfig.model_fields.keys() & sft.model_fields_set) - {"seed", "validation_every"}
        shared = {name: getattr(sft, name) for name in names}
        return DistillConfig(**{**shared, **self.model_dump(exclude_none=True)})
