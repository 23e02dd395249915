"""Lessons of a model that a Tinker server trains: the loss is computed here, from the server's log-probs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gradus.core import ConfigError
from gradus.training.data.sequences import Samples
from gradus.training.laws.runner import LawRunner
from gradus.training.lesson_config import LessonConfig
from gradus.training.lessons import HeldOutFigures, StepSums
from gradus.training.tinker.weights import ServedTraining, ServedWeights


class ServedLessonModel:
    """Weights on a server. Accuracy is not measured: a server gives log-probs of the tokens that it is sent, and no others."""

    def __init__(self, source: ServedTraining, config: LessonConfig) -> None:
        if config.observations:
            raise ConfigError(
                "a Tinker server trains what was answered, and observations is about the rest; leave it out"
            )
        self.config = config
        self.words = source.words
        self.weights = ServedWeights(source, config)

    @property
    def state(self) -> ServedWeights:
        """Weights and optimizer, as checkpoints store and restore them."""
        return self.weights

    def update(self, samples: Samples, lr: float, laws: LawRunner | None = None) -> StepSums:
        """Takes the update of a step: the mean over the learned tokens, as a model in this process is taught."""
        remote = self.weights.remote
        n_tokens = sum(sample.actions for sample in samples)
        scored = remote.forward(samples)
        gradients = [torch.full((sample.actions,), -1.0 / n_tokens) for sample in samples]
        norm = remote.train(samples, scored, gradients, self.config, lr)
        computed = sum(len(sample) - 1 for sample in samples)
        return StepSums(loss=_mean_loss(samples, scored), right=None, computed=computed, norm=norm)

    def measure(self, samples: Samples, laws: LawRunner | None = None) -> HeldOutFigures:
        """The loss on samples that are not trained."""
        return HeldOutFigures(loss=_mean_loss(samples, self.weights.remote.forward(samples)), accuracy=None)

    def save(self, folder: Path, laws: LawRunner) -> None:
        """Writes a model folder that names the weights, which the server keeps."""
        self.weights.export(folder, self.words)


def _mean_loss(samples: Samples, scored: list[Tensor]) -> float:
    learned = [logprobs[sample.positions - 1] for sample, logprobs in zip(samples, scored, strict=True)]
    return -float(torch.cat(learned).mean())
