"""Settings of a GRPO run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from gradus.algorithms import Algorithm, Credit, Scale, find_algorithm
from gradus.core import ConfigError, Grader
from gradus.core.naming import import_object
from gradus.core.values import JsonDict
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.trainer_config import SCHEDULES, TrainerConfig, refuse_without_effect

_OBJECTIVE = ("algorithm", "credit", "scale", "clip_low", "clip_high", "dynamic_sampling")
# A coefficient, and the settings that have no effect while it is 0.
_OF_COEFFICIENTS = {"distill_coef": {"distill_teacher"}, "entropy_coef": {"entropy_schedule", "entropy_spans"}}


def algorithm_of(name: str) -> Algorithm:
    """Returns the algorithm of a name: Gradus's own, an installed package's, or one's own as ``FILE.py:NAME`` or ``module:NAME``.

    Raises ValueError for an unknown name, ConfigError for code that cannot be imported.
    """
    if ":" not in name:
        return find_algorithm(name)
    algorithm = import_object(name, "algorithm")
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"algorithm {name!r} is a {type(algorithm).__name__}; expected a gradus.algorithms.Algorithm")
    return algorithm


class GrpoConfig(TrainerConfig):
    """Group-relative policy optimization.

    A step rolls out ``groups`` tasks with ``group_size`` members each and takes ``epochs`` x ``minibatches`` optimizer updates.
    """

    resources: ClassVar[frozenset[str]] = TrainerConfig.resources | {
        "batch_size",
        "max_logp_diff",
        "sampler_url",
    }

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    max_steps: int = Field(default=100, ge=1)
    """Steps of the whole run."""
    groups: int = Field(default=16, ge=1)
    """Tasks of a step, one group each."""
    group_size: int = Field(default=8, ge=2)
    """Members of a group: episodes of the same task."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns after which an episode is cut; the environment's own by default."""
    sampling: SamplingConfig = SamplingConfig()
    """How answers are sampled."""
    batch_size: int | None = Field(default=None, ge=1)
    """Rows the sampler computes at once; all by default."""
    tasks: int | None = Field(default=None, ge=1)
    """Number of training tasks, shuffled anew each epoch; endless by default."""
    first_task: int = Field(default=0, ge=0)
    """Index of the first training task that this run may use."""

    algorithm: str = "gradus"
    """Names loss, advantage, baseline, scale, credit and clip; the settings below override its own. `gradus` has DAPO's loss and clip, one scale for the batch, and credit as fine as the grader supports; the others are as in their papers."""
    credit: Credit | None = None
    """What gets an advantage of its own; the algorithm's own by default."""
    scale: Scale | None = None
    """What advantages are divided by: nothing, one number for the batch, or each group's own."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Per turn, for credit by turn and span: below 1, less noise for some bias towards what follows soon."""
    informing: bool = True
    """Whether an action also gets the immediate terms of later turns, for credit by span, because an action can reveal what a later belief needs. Use false while beliefs are still random."""
    clip_low: float | None = Field(default=None, gt=0)
    """The ratio may fall to 1 - clip_low."""
    clip_high: float | None = Field(default=None, gt=0)
    """The ratio may rise to 1 + clip_high."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the episodes of a step."""
    minibatches: int = Field(default=1, ge=1)
    """Updates in a pass; groups stay whole."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference; 0 needs none."""
    distill_coef: float = Field(default=0.0, ge=0)
    """Weight of a teacher: how much likelier each token is to the teacher than it was to the sampler, in nats, is added to its advantage (reverse KL by policy gradient); 0 needs no teacher."""
    distill_teacher: str | None = None
    """That teacher, as in `distill.teacher`; the environment's own by default."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; below 0 it is a penalty."""
    entropy_schedule: Literal["linear", "cosine"] | None = None
    """How the bonus falls over the steps of the run, to 0 after the last; it stays by default."""
    entropy_spans: dict[str, float] | None = None
    """Kind of span to the share of the bonus that its tokens get, others get none; all tokens get it by default."""
    observations: float = Field(default=0.0, ge=0)
    """Weight of predicting a token that the environment shows after an action, beside 1 for a token that is said, as in SFT: what the model knows of the world is kept, and grows with every episode."""
    dynamic_sampling: int = Field(default=0, ge=0)
    """Further rounds that may replace groups without an advantage; 0 takes what comes."""
    max_logp_diff: float | None = Field(default=None, gt=0)
    """Largest difference of sampler and trainer log-probs that a run goes on with, nats; by default the dtype sets limits on the mean, the 99th percentile and the largest."""
    correction: Literal["truncate", "mask", "sequence_truncate", "sequence_mask"] | None = None
    """Weigh tokens, or whole sequences, by trainer over sampler, for a sampler that is not this process."""
    sampler: str = "local"
    """Who samples: `local` is this process, `http` and `vllm` a server that speaks vLLM's dialect; `FILE.py:NAME` an engine of your own."""
    sampler_url: str | None = None
    """Address of the server, as in http://HOST:PORT/v1."""

    validation_every: int = Field(default=10, ge=0)
    """Steps between validations; 0 for never."""
    validation_tasks: int = Field(default=32, ge=0)
    """Tasks held out for validation, at most half of a finite set; nothing of the same content is trained on."""
    best_by: Literal["sampled", "greedy", "both"] = "both"
    """The decoding whose validation reward chooses `best`."""
    store_every: int = Field(default=10, ge=0)
    """Steps between stored samples of episodes, two groups each; 0 for never."""
    on_alert: Literal["warn", "stop"] = "warn"
    """What an alert does: write it down, or also stop the run if it is severe."""

    @model_validator(mode="after")
    def _refuse_knobs_without_effect(self) -> GrpoConfig:
        self._check_algorithm()
        self._check_sampler()
        for key, settings in _OF_COEFFICIENTS.items():
            if getattr(self, key) == 0:
                idle = self.model_fields_set & settings
                refuse_without_effect(idle, f"while {key} is 0; set it, or leave it out")
        if self.sampling.greedy:
            raise ValueError("greedy sampling makes all members of a group equal; GRPO needs sampling.greedy = false")
        if self.minibatches > self.groups:
            raise ValueError(
                f"minibatches ({self.minibatches}) cannot exceed groups ({self.groups}): a group is never cut"
            )
        if self.tasks is not None and self.tasks <= self.held_out:
            raise ValueError(
                f"tasks = {self.tasks} leaves nothing to train on when {self.held_out} are held out; lower validation_tasks"
            )
        return self

    @property
    def longest_episode(self) -> int:
        """The most tokens that may be sampled in an episode, once ``max_turns`` is filled in."""
        return self.sampling.max_new_tokens * (self.max_turns or 1)

    def _check_algorithm(self) -> None:
        algorithm = self.named
        if self.credit is not None and self.credit not in algorithm.credits:
            raise ValueError(
                f"{self.algorithm} gives one advantage per episode; leave credit out, or set it to 'episode'"
            )
        if algorithm.scale is None and self.scale is not None:
            raise ValueError(f"scale has no effect with {self.algorithm}, which scales in its own way")
        if algorithm.clip is None:
            idle = self.model_fields_set & {"clip_low", "clip_high"}
            refuse_without_effect(idle, f"with {self.algorithm}, which does not clip")
        if self.discount != 1.0 and (self.credit or algorithm.credit) == "episode":
            raise ValueError(
                "discount is per turn and has no effect with credit by episode; leave it out, or set credit = 'turn'"
            )

    def _check_sampler(self) -> None:
        """A server needs an address, and every sampler that is not this process a correction."""
        if self.sampler == "local":
            return
        if self.sampler not in ("http", "vllm") and ":" not in self.sampler:
            raise ValueError(f"sampler is 'local', 'http' or 'vllm', or FILE.py:NAME, got {self.sampler!r}")
        needs_address = ":" not in self.sampler and self.sampler_url is None
        if needs_address or self.correction is None:
            raise ValueError(
                f"sampler = {self.sampler!r} needs sampler_url, as in http://localhost:8000/v1, and computes log-probs elsewhere: set "
                "correction = 'truncate'"
            )

    def check_own_sampler(self) -> None:
        """Raises ConfigError for a correction where this model samples itself, with the weights that are trained.

        Its log-probs are the trainer's, so each weight would be 1, and a difference is a bug that the correction would hide. Not part of
        the validation: a policy that is given to ``train_grpo`` may sample in its place.
        """
        if self.sampler == "local" and self.correction is not None:
            raise ConfigError(
                f"correction = {self.correction!r} is for a sampler that is not this process; it has no effect with sampler = 'local': "
                "leave it out, or set sampler"
            )

    def check_served(self) -> None:
        """Raises ConfigError for settings whose meaning no Tinker server can keep. Those of this process's memory and speed have no effect."""
        super().check_served()
        sampling = self.sampling
        reshaped = sampling.temperature != 1.0 or sampling.truncates
        rules = [
            (reshaped, "it trains the distribution at temperature 1", "set grpo.sampling.temperature = 1, without top_k and top_p"),
            (sampling.masks, "it enforces no grammar", "set grpo.sampling.grammar and grpo.sampling.constrain = false"),
            (self.entropy_coef, "it gives no entropies", "set grpo.entropy_coef = 0"),
            (self.observations, "it trains what was answered", "leave out grpo.observations"),
            (self.optimizer != "adamw", "it has Adam alone", "set grpo.optimizer = 'adamw'"),
            (self.sampler != "local", "it samples what it trains", "leave out grpo.sampler"),
        ]  # fmt: skip
        for wrong, reason, remedy in rules:
            if wrong:
                raise ConfigError(f"a Tinker server cannot keep this setting: {reason}; {remedy}")

    def resolved(self, grader: Grader) -> GrpoConfig:
        """Fills in what the settings leave to the algorithm and to the grader.

        Raises ConfigError for a setting without effect with this grader.
        """
        algorithm = self.named
        defaults: JsonDict = {
            "credit": algorithm.credit or ("turn" if grader.per_turn else "episode"),
            "scale": algorithm.scale,
        }
        if algorithm.clip is not None:
            defaults["clip_low"], defaults["clip_high"] = algorithm.clip
        if algorithm.dynamic_sampling and "dynamic_sampling" not in self.model_fields_set:
            defaults["dynamic_sampling"] = algorithm.dynamic_sampling
        unset = {name: value for name, value in defaults.items() if not getattr(self, name)}
        resolved = self.model_copy(update=unset)
        idle: str | None = None
        if resolved.discount != 1.0 and resolved.credit == "episode":
            idle = "discount"
        elif not resolved.informing and resolved.credit != "span":
            idle = "informing"
        if idle is not None:
            raise ConfigError(
                f"{idle} has no effect with credit by {resolved.credit}, which suits grader {grader.name!r}; leave it out, or set credit"
            )
        if resolved.observations and resolved.max_turns == 1:
            raise ConfigError(
                "observations is about what the environment shows after an answer, and has no effect in episodes of one turn; leave it out"
            )
        return resolved

    def objective(self) -> str:
        """Returns what makes the objective of resolved settings, in one line."""
        values = {name: getattr(self, name) for name in _OBJECTIVE}
        parts = [f"{name} {value}" for name, value in values.items() if value]
        if self.named.without:
            parts.append(self.named.without)
        return " · ".join(parts)

    @property
    def named(self) -> Algorithm:
        """Returns what ``algorithm`` stands for. Raises ValueError or ConfigError for a name of nothing."""
        return algorithm_of(self.algorithm)

    @property
    def scale_of_advantages(self) -> Scale:
        """The scale that the algorithm is called with; one that scales in its own way does not read it."""
        return self.scale or "batch"

    @property
    def clips(self) -> tuple[float, float]:
        """clip_low and clip_high: as set, or the algorithm's own."""
        low, high = self.named.clip or (1.0, 1.0)  # a loss that does not clip reads neither
        return self.clip_low or low, self.clip_high or high

    def at_step(self, step: int) -> GrpoConfig:
        """These settings with the entropy bonus that holds at ``step``, 1 for the first."""
        if self.entropy_schedule is None:
            return self
        share = SCHEDULES[self.entropy_schedule]((step - 1) / self.max_steps)
        return self.model_copy(update={"entropy_coef": self.entropy_coef * share})

    @property
    def held_out(self) -> int:
        """Number of tasks kept for validation."""
        return self.validation_tasks if self.validation_every else 0
