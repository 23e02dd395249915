"""What learns on a Tinker server: the learner of the same loop (:mod:`gradus.training.grpo`) as a model in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.core import EnvironmentSpec, Grader, Group
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.tinker.policy import TinkerPolicy
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, graded_episodes
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.optimizers import lr_at
from gradus.training.engine.update import UpdateResult
from gradus.training.laws.runner import LawRunner
from gradus.training.laws.tokens import check_samples
from gradus.training.run.validation import Decoding
from gradus.training.teachers import Teacher, with_teacher
from gradus.training.tinker.update import remote_update
from gradus.training.tinker.weights import ServedState, ServedTraining, ServedWeights, require_prompt_logprobs


class TinkerLearner:
    """Trains adapters on a server. Environment, credit and objective stay here.

    Args:
        source: what training begins with.
        grader: the environment's own by default.
        teacher: what ``distill_coef`` learns from.

    Raises:
        ConfigError: the server, or a setting, cannot be used.
    """

    def __init__(
        self,
        source: ServedTraining,
        spec: EnvironmentSpec,
        config: GrpoConfig,
        *,
        grader: Grader | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        config.check_served()
        self.grader = grader or spec.grader()
        config = config.model_copy(update={"max_turns": config.max_turns or spec.max_turns})
        self.config = config = config.resolved(self.grader)
        self.words = source.words.with_settings(
            sampling=config.sampling, environment=source.words.settings.environment or spec.name
        )
        self.steps = 0
        self.laws = LawRunner(frozenset(config.laws.off))
        self.weights = ServedWeights(source, config)
        self._teacher = teacher
        self._base: TinkerPolicy | None = None
        if config.kl_coef:
            self._base = require_prompt_logprobs(source)
        self.policy = self._sampler(config.sampling, "grpo")
        self._validating: dict[Decoding, TinkerPolicy] = {
            "sampled": self._sampler(config.sampling, "sampled"),
            "greedy": self._sampler(config.sampling.changed(temperature=0), "greedy"),
        }

    @property
    def name(self) -> str:
        """Folder or name of the model that it began with."""
        return self.weights.source.words.path

    @property
    def state(self) -> ServedState:
        """Weights and optimizer, as checkpoints store and restore them."""
        return ServedState(self.weights)

    @property
    def local_model(self) -> None:
        """None: the server has the weights."""

    def validation_policies(self) -> Mapping[Decoding, TinkerPolicy]:
        """The policies that roll out the held-out tasks: one samples as in training, one is greedy."""
        return self._validating

    def credit(self, groups: Sequence[Group]) -> list[TrainingSample]:
        """Returns the sampled tokens of all graded episodes, with the advantages (A,) that the algorithm gives them."""
        samples = credit_groups(groups, self.config, self.words.renderer, weights=self.grader.weights)
        self.laws.step = self.steps + 1
        check_samples(self.laws, groups, samples, self.config, self.words.renderer, None, self.grader.weights)
        if self._teacher is None:
            return samples
        return with_teacher(samples, graded_episodes(groups), self._teacher, self.config.distill_coef)

    def update(self, samples: Sequence[TrainingSample], *, lr: float | None = None) -> UpdateResult:
        """Takes ``epochs`` x ``minibatches`` optimizer updates. ``lr``: the schedule's by default."""
        self.steps += 1
        if lr is None:
            lr = lr_at(self.config, self.steps, self.config.max_steps)
        config = self.config.at_step(self.steps)
        return remote_update(self.weights.remote, samples, config, lr, key=(self.steps,), base=self._base)

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments, by loading weights without them."""
        self.weights.load(self.weights.save("reset"), optimizer=False)

    def sync_weights(self) -> None:
        """Lets the policies sample from the weights as they are."""
        client = self.weights.sampling_client()
        for policy in (self.policy, *self._validating.values()):
            policy.client = client

    def reopen(self) -> None:
        """Begins a new session with the server, after it has lost this one. The weights are those of the beginning."""
        self.weights.reopen()

    def save(self, folder: str | Path) -> Path:
        """Writes a model folder that names the weights, which the server keeps; returns the folder."""
        folder = Path(folder)
        self.weights.export(folder, self.words)
        return folder

    def _sampler(self, sampling: SamplingConfig, name: str) -> TinkerPolicy:
        service = self.weights.requests.service
        return TinkerPolicy(service, None, self.words, sampling, name=name, counts=self.weights.source.counts)
