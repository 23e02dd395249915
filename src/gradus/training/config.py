"""Settings of a GRPO run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gradus.algorithms import PRESETS, Preset
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.engine.loss_step import TrainerConfig

__all__ = ["GrpoConfig"]


class GrpoConfig(TrainerConfig):
    """Group-relative policy optimization.

    A step plays ``groups`` tasks with ``group_size`` members each and takes ``epochs`` x ``minibatches`` optimizer updates on them.

    ``discount``: per turn, for credit by turn and span; below 1 it buys less noise for some bias towards what follows soon.

    ``tasks``: number of training tasks, shuffled anew each epoch; None for an endless list. ``first_task``: index of the first
    task of ``spec.train_task`` that this run may use; the first ``validation_tasks`` from there are held out for validation and
    never trained on. ``algorithm`` names loss, advantage and clip (``gradus.algorithms.PRESETS``); ``credit`` None is by turn where
    it allows that. ``kl_coef`` 0 loads no reference model; ``reference`` None is what the run began with.
    ``dynamic_sampling``: further rounds of play that may replace groups without signal; 0 takes what comes.
    ``max_logp_diff``: largest difference of sampler and trainer log-probs in nats that a run goes on with. ``correction``: weigh
    tokens by trainer over sampler (``gradus.algorithms.CORRECTIONS``), for a sampler that is not this process.
    ``sampler``: who plays; ``http`` (`gradus serve`) and ``vllm``, one dialect, at ``sampler_url`` (``http://HOST:PORT/v1``), serving
    ``sampler_model`` (None for the only one there). It gets new weights every ``sync_every`` steps: with 3,
    what it plays with is 0, 1 and 2 steps old.
    ``validation_every``: steps, 0 for never. ``best_by``: the decoding whose validation reward chooses ``best``.
    ``validation_condition``: a condition that is validated besides; it chooses nothing. ``store_every``: steps between
    stored samples of episodes, 0 for never; ``store_groups`` of them.
    """

    lr: float = Field(default=3e-4, gt=0)
    max_steps: int = Field(default=100, ge=1)
    groups: int = Field(default=16, ge=1)
    group_size: int = Field(default=8, ge=2)
    max_turns: int | None = Field(default=None, ge=1)
    sampling: SamplingConfig = SamplingConfig()
    batch_size: int | None = Field(default=None, ge=1)  # rows the sampler computes at once
    tasks: int | None = Field(default=None, ge=1)
    first_task: int = Field(default=0, ge=0)

    algorithm: str = "dapo"
    credit: Literal["episode", "turn", "span"] | None = None
    scale: Literal["none", "batch", "group"] = "batch"
    discount: float = Field(default=1.0, gt=0, le=1)
    clip_low: float | None = Field(default=None, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    kl_coef: float = Field(default=0.0, ge=0)
    kl_estimator: Literal["k2", "k3"] = "k3"
    reference: str | None = None
    entropy_coef: float = 0.0
    dynamic_sampling: int = Field(default=0, ge=0)
    max_logp_diff: float = Field(default=1e-3, gt=0)
    correction: Literal["truncate", "mask"] | None = None
    sampler: Literal["local", "http", "vllm"] = "local"
    sampler_url: str | None = None
    sampler_model: str | None = None
    sync_every: int = Field(default=1, ge=1)

    validation_every: int = Field(default=10, ge=0)
    validation_tasks: int = Field(default=32, ge=0)
    validation_condition: str | None = None
    best_by: Literal["sampled", "greedy", "both"] = "both"
    store_every: int = Field(default=10, ge=0)
    store_groups: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _no_silent_knobs(self) -> GrpoConfig:
        given = self.model_fields_set
        if self.kl_coef == 0 and (named := given & {"kl_estimator", "reference"}):
            raise ValueError(
                f"{', '.join(sorted(named))} has no effect while kl_coef is 0; set kl_coef, or leave it out"
            )
        if self.algorithm not in PRESETS:
            raise ValueError(f"unknown algorithm {self.algorithm!r}; there are {', '.join(PRESETS)}")
        if not self.preset.turns and self.credit not in (None, "episode"):
            raise ValueError(
                f"{self.algorithm} gives one advantage per episode; leave credit out, or set it to 'episode'"
            )
        if self.preset.advantage in ("maxrl", "reinforce++") and "scale" in given:
            raise ValueError(f"scale has no effect with {self.algorithm}, which scales in its own way")
        if self.discount != 1.0 and self.credited == "episode":
            raise ValueError(
                "discount is per turn and has no effect with credit by episode; leave it out, or set credit = 'turn'"
            )
        if self.sampling.greedy:
            raise ValueError("greedy sampling makes all members of a group equal; GRPO needs sampling.greedy = false")
        if not self.validation_every and (named := given & {"validation_tasks", "validation_condition", "best_by"}):
            raise ValueError(f"{', '.join(sorted(named))} has no effect while validation_every is 0")
        if self.validation_every and not self.validation_tasks:
            raise ValueError(
                "validation_every needs at least one task to validate on; set validation_tasks, or validation_every = 0"
            )
        if self.tasks is not None and self.tasks <= self.held_out:
            raise ValueError(
                f"tasks = {self.tasks} leaves nothing to train on when {self.held_out} are held out; lower validation_tasks"
            )
        if not self.store_every and "store_groups" in given:
            raise ValueError("store_groups has no effect while store_every is 0")
        if self.correction is not None and (self.epochs, self.minibatches) != (1, 1):
            raise ValueError(
                "correction compares with the weights that were updated last; it needs epochs = minibatches = 1"
            )
        if self.correction is not None and "max_logp_diff" in given:
            raise ValueError(
                "max_logp_diff has no effect with a correction, which is there because of the gap; leave one out"
            )
        self._check_sampler(given)
        if self.minibatches > self.groups:
            raise ValueError(
                f"minibatches ({self.minibatches}) cannot exceed groups ({self.groups}): a group is never cut"
            )
        return self

    def _check_sampler(self, given: set[str]) -> None:
        """A server needs an address and a correction; without one their settings would be silent."""
        if self.sampler == "local":
            if named := given & {"sampler_url", "sampler_model", "sync_every"}:
                raise ValueError(
                    f"{', '.join(sorted(named))} has no effect while sampler is local; set sampler = 'http', or leave it out"
                )
            return
        if self.sampler_url is None:
            raise ValueError(f"sampler = {self.sampler!r} needs sampler_url, as in http://localhost:8000/v1")
        if self.correction is None:
            raise ValueError(
                f"sampler = {self.sampler!r} computes log-probs elsewhere, perhaps with older weights; set correction = 'truncate'"
            )

    @property
    def preset(self) -> Preset:
        """The loss, advantage and clip that ``algorithm`` stands for."""
        return PRESETS[self.algorithm]

    @property
    def credited(self) -> Literal["episode", "turn", "span"]:
        """``credit``, or its default: by turn where the algorithm allows it."""
        return self.credit or ("turn" if self.preset.turns else "episode")

    @property
    def clips(self) -> tuple[float, float]:
        """clip_low and clip_high: as set, or the algorithm's own."""
        low = self.preset.clip_low if self.clip_low is None else self.clip_low
        high = self.preset.clip_high if self.clip_high is None else self.clip_high
        return low, high

    @property
    def held_out(self) -> int:
        """Number of tasks kept for validation."""
        return self.validation_tasks if self.validation_every else 0
