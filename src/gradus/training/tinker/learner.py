"""What learns on a Tinker server: the learner of the same loop (:mod:`gradus.training.grpo`) as a model in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gradus.core import EnvironmentSpec, Grader
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.tinker.policy import TinkerPolicy
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Samples
from gradus.training.engine.update import UpdateResult
from gradus.training.learner import StepLearner
from gradus.training.run.validation import Decoding
from gradus.training.teachers import Teacher
from gradus.training.tinker.update import remote_update
from gradus.training.tinker.weights import ServedTraining, ServedWeights, require_prompt_logprobs


class TinkerLearner(StepLearner):
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
        super().__init__(spec, config, grader)
        config = self.config
        self.words = source.words.with_settings(
            sampling=config.sampling, environment=source.words.settings.environment or spec.name
        )
        self.weights = ServedWeights(source, config)
        self._teacher = teacher
        self._base: TinkerPolicy | None = None
        if config.kl_coef:
            self._base = require_prompt_logprobs(source)
        self.policy = self._sampling = self._sampler(config.sampling, "grpo")
        self._validating: dict[Decoding, TinkerPolicy] = {
            "sampled": self._sampler(config.sampling, "sampled"),
            "greedy": self._sampler(config.sampling.changed(temperature=0), "greedy"),
        }

    @property
    def state(self) -> ServedWeights:
        """Weights and optimizer, as checkpoints store and restore them."""
        return self.weights

    def validation_policies(self) -> Mapping[Decoding, TinkerPolicy]:
        """The policies that roll out the held-out tasks: one samples as in training, one is greedy."""
        return self._validating

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments, by loading weights without them."""
        self.weights.restore(self.weights.save("reset"), optimizer=False)

    def sync_weights(self) -> None:
        """Lets the policies sample from the weights as they are."""
        client = self.weights.sampling_client()
        for policy in (self._sampling, *self._validating.values()):
            policy.client = client

    def reopen(self) -> None:
        """Begins a new session with the server, after it has lost this one. The weights are those of the beginning."""
        self.weights.reopen()

    def save(self, folder: str | Path) -> Path:
        """Writes a model folder that names the weights, which the server keeps; returns the folder."""
        folder = Path(folder)
        self.weights.export(folder, self.words)
        return folder

    def _update(self, samples: Samples, config: GrpoConfig, lr: float) -> UpdateResult:
        return remote_update(self.weights.remote, samples, config, lr, key=(self.steps,), base=self._base)

    def _sampler(self, sampling: SamplingConfig, name: str) -> TinkerPolicy:
        service = self.weights.requests.service
        return TinkerPolicy(service, None, self.words, sampling, name=name, counts=self.weights.source.counts)
