"""What learns in a GRPO run: a model with its optimizer and its sampler. The loop (:mod:`gradus.training.grpo`) and loops of one's own hold one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Grader, Group, Policy
from gradus.policies.local.loading import LoadedModel, LoadedTokenizer
from gradus.policies.local.policy import LocalPolicy
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, graded_episodes
from gradus.training.data.sequences import Samples, TrainingSample
from gradus.training.distributed.processes import world
from gradus.training.engine.fsdp import shard, sync_inference_model
from gradus.training.engine.loss_step import PassBudget
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.reference import load_reference
from gradus.training.engine.update import UpdateOptions, UpdateResult, UpdateWatch, policy_update
from gradus.training.laws.credit import advantages_again, taught_again
from gradus.training.laws.lessons import stated_again
from gradus.training.laws.models import StillModels, loaded_again
from gradus.training.laws.plain_pass import STRIDE
from gradus.training.laws.runner import LawRunner
from gradus.training.laws.step import is_exact
from gradus.training.laws.storing import folder_again
from gradus.training.laws.tokens import tokens_again
from gradus.training.laws.update import FRESH, UpdateLaws, fresh_again
from gradus.training.run.checkpoints import LocalState, TrainingState, save_model
from gradus.training.run.options import GrpoOptions
from gradus.training.run.validation import Decoding, sampling_policy
from gradus.training.teachers import ScriptedTeacher, Teacher, with_teacher

_LOOKED_AT = 16  # episodes of a step, at least, whose tokens and advantages are computed again


class StepLearner(ABC):
    """What the loop needs of a learner, wherever its weights are, and what all learners share: settings, credit and laws.

    ``config``: the resolved settings; ``asked``: as they were before. ``grader``: the environment's own by default; what weighs the components, set anew when a schedule
    changes it. ``laws``: what is checked meanwhile. ``steps``: updates that were taken. ``policy``: samples with the weights of the last
    :meth:`sync_weights`.
    """

    policy: Policy
    words: LoadedTokenizer  # tokenizer, renderer and settings of the model, as they are stored beside its weights

    def __init__(self, spec: EnvironmentSpec, config: GrpoConfig, grader: Grader | None) -> None:
        self.grader = grader or spec.grader()
        config = config.model_copy(update={"max_turns": config.max_turns or spec.max_turns})
        self.asked, self.config = config, config.resolved(self.grader)
        self.steps = 0
        self.laws = LawRunner(config.laws.off)
        self._teacher: Teacher | None = None

    @property
    def name(self) -> str:
        """Folder or name of the model that it began with."""
        return str(self.words.path)

    @property
    @abstractmethod
    def state(self) -> TrainingState:
        """Weights and optimizer, as checkpoints store and restore them."""

    @property
    def local_model(self) -> LoadedModel | None:
        """The model in this process whose weights sample, as they are; None if another process has them."""
        return None

    @abstractmethod
    def validation_policies(self) -> Mapping[Decoding, Policy]:
        """The policies that roll out the held-out tasks: one samples as in training, one is greedy."""

    def credit(self, groups: Sequence[Group]) -> list[TrainingSample]:
        """Returns the sampled tokens of all graded episodes, with the advantages (A,) that the algorithm gives them.

        ``dataclasses.replace(sample, advantages=...)`` gives others; ``sample.turns`` (A,) says of which turn each token is, and
        ``sample.episode`` of which graded episode.
        """
        renderer = self.words.renderer
        samples = credit_groups(groups, self.config, renderer, weights=self.grader.weights)
        self.laws.step = self.steps + 1
        if self.laws.due:
            every = max(1, sum(len(group.episodes) for group in groups) // _LOOKED_AT)
            self.laws.check("tokens", tokens_again, groups, samples, every)
            self.laws.check(
                "credit", advantages_again, groups, samples, self.config, renderer, every, self.grader.weights
            )
        if self._teacher is None:
            return samples
        logprobs = self._teacher.logprobs(samples, graded_episodes(groups))
        taught = with_teacher(samples, logprobs, self.config.distill_coef)
        if not self.laws.due:
            return taught
        self.laws.check("credit", taught_again, samples, taught, self.config.distill_coef, logprobs)
        if samples and isinstance(self._teacher, ScriptedTeacher):
            place = (self.steps * STRIDE) % len(samples)
            stated = self._teacher.stated[samples[place].episode]
            self.laws.check("credit", stated_again, renderer, samples[place], stated, logprobs[place])
        return taught

    def update(self, samples: Sequence[TrainingSample], *, lr: float | None = None) -> UpdateResult:
        """Takes ``epochs`` x ``minibatches`` optimizer updates. ``lr``: the schedule's by default.

        Its figures go to the metrics; one that was not measured is None.
        """
        self.steps += 1
        self.laws.step = self.steps
        if lr is None:
            lr = lr_at(self.config, self.steps, self.config.max_steps)
        return self._update(samples, self.config.at_step(self.steps), lr)

    @abstractmethod
    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments."""

    @abstractmethod
    def sync_weights(self) -> None:
        """Gives the sampler the weights as they are."""

    def reopen(self) -> None:  # noqa: B027 - not every learner can lose them
        """Begins anew with the weights of the beginning, after a server has lost them. Weights in this process are not lost."""

    @abstractmethod
    def save(self, folder: str | Path) -> Path:
        """Writes the model as the sampler has it, which every command takes; returns the folder."""

    @abstractmethod
    def _update(self, samples: Samples, config: GrpoConfig, lr: float) -> UpdateResult:
        """Takes the updates of a step with its settings."""


class Learner(StepLearner):
    """Holds a model with its optimizer. ``policy`` samples from it; :meth:`credit` and :meth:`update` are the other half of a step.

    ``model`` is a folder, a name, or what ``gradus.load_model`` gives. ``grader``: the environment's own by default; the algorithm gets its
    components and weights. ``config.max_steps`` is what the learning rate's schedule ends at. ``options``: a sampler in place of
    the model itself, and a teacher.
    """

    def __init__(
        self,
        model: LoadedModel | str | Path,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        *,
        grader: Grader | None = None,
        options: GrpoOptions | None = None,
    ) -> None:
        options = options or GrpoOptions()
        if options.sampler is None:
            config.check_own_sampler()
        if config.distill_coef and options.teacher is None:
            raise ConfigError("distill_coef needs a teacher: give one in the options, or set distill_coef = 0")
        super().__init__(spec, config, grader)
        config = self.config
        loaded = prepare_model(model, config)
        environment = loaded.settings.environment or spec.name
        self.words = self.model = loaded.with_settings(sampling=config.sampling, environment=environment)
        self._spec = spec
        self._reference = load_reference(self.model, config)
        # Laws compare what one process has; of several each has a part.
        alone = world().size == 1
        self._still = StillModels(self.model, config, self._reference) if alone else None
        # A server samples instead; it needs full weights from here only if adapters are merged into them.
        samples = options.sampler is None or bool(config.validation_every) or config.lora is not None
        self._inference_model = shard(self.model, samples=samples)
        self._loaded_again = False  # a model folder; that they load is asked once
        self._push_weights = options.push_weights
        self._teacher = options.teacher(self.model) if options.teacher and config.distill_coef else None
        self.optimizer = make_optimizer(self.model.model, config)
        self._budget = PassBudget(config)
        self.policy = options.sampler or sampling_policy(self._inference_model, spec, config)

    @property
    def state(self) -> TrainingState:
        """Weights and optimizer, as checkpoints store and restore them."""
        return LocalState(self.model.model, self.optimizer)

    @property
    def local_model(self) -> LoadedModel | None:
        """The model in this process whose weights sample, as they are; None if another process has them."""
        samples_here = self._still is not None and isinstance(self.policy, LocalPolicy)
        return self.model if samples_here else None

    def validation_policies(self) -> Mapping[Decoding, Policy]:
        """The policies that roll out the held-out tasks: one samples as in training, one is greedy."""
        model, spec, config = self._inference_model, self._spec, self.config
        return {
            "sampled": sampling_policy(model, spec, config, name="sampled"),
            "greedy": sampling_policy(model, spec, config, name="greedy", greedy=True),
        }

    def _update(self, samples: Samples, config: GrpoConfig, lr: float) -> UpdateResult:
        still, watch = self._still, None
        if still is not None:
            still.between.begins(self.laws, self.optimizer)
            if self.laws.due:
                # The run's settings, not the step's: the law reckons the step's entropy bonus itself.
                watch = UpdateLaws(self.laws, self.model, self.config, samples, self._reference)
        options = UpdateOptions(
            reference=self._reference, key=(self.steps,), budget=self._budget, watch=watch or UpdateWatch()
        )
        result = policy_update(self.model, self.optimizer, samples, config, lr, options)
        # In every step: it costs nothing. Only what is too large is told to the law, so that the metrics stay few.
        exact = self.local_model is not None and is_exact(self.model, config)
        if exact and (result.logp_diff_max or 0.0) > FRESH:
            self.laws.check("sampler", fresh_again, result.logp_diff_max)
        if watch is not None and still is not None:
            self.laws.check("records", watch.finished, result)
            still.ends(self.laws, self.optimizer, watch.optimizer or self.optimizer, result.figures.get("kl"))
        return result

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments."""
        self.optimizer = make_optimizer(self.model.model, self.config)
        if self._still is not None:
            self._still.between.forget()

    def sync_weights(self) -> None:
        """Gives the sampler the weights as they are: copies them where the model is sharded, pushes them to a server."""
        sync_inference_model(self._inference_model, self.model)
        if self._push_weights is not None:
            self._push_weights(self._inference_model, self.steps)

    def save(self, folder: str | Path) -> Path:
        """Writes the model as it is, which every command takes; returns the folder."""
        folder = Path(folder)
        save_model(folder, self._inference_model)
        if self._still is not None:
            self.laws.check("saved", folder_again, folder, self.model, self.config.sampling)
            if not self._loaded_again:
                self.laws.check("saved", loaded_again, folder, self.model, bool(self.config.quantize))
                self._loaded_again = True
        return folder
