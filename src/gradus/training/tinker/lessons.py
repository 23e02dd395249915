"""Lessons of a model that a Tinker server trains: the loss is computed here, from the server's log-probs."""

from __future__ import annotations

from pathlib import Path

import torch

from gradus.training.data.sequences import split
from gradus.training.lesson_config import LessonConfig
from gradus.training.lessons import HeldOutFigures, Samples, StepSums
from gradus.training.tinker.remote import SURROGATE, TrainedTokens
from gradus.training.tinker.weights import ServedState, ServedTraining, ServedWeights


class ServedLessonModel:
    """Weights on a server. Accuracy is not measured: a server gives log-probs of the tokens that it is sent, and no others."""

    def __init__(self, source: ServedTraining, config: LessonConfig) -> None:
        self.config = config
        self.words = source.words
        self.weights = ServedWeights(source, config)
        self.steps = 0

    @property
    def state(self) -> ServedState:
        """Weights and optimizer, as checkpoints store and restore them."""
        return ServedState(self.weights)

    def update(self, samples: Samples, lr: float) -> StepSums:
        """Takes the update of a step: the mean over the learned tokens, as a model in this process is taught."""
        remote = self.weights.remote
        n_tokens = sum(sample.actions for sample in samples)
        lengths = [len(sample) - 1 for sample in samples]
        row = torch.cat(remote.forward(samples)).requires_grad_()
        loss = torch.zeros(())
        read = torch.zeros(())
        for sample, logprobs in zip(samples, split(row, lengths), strict=True):
            loss = loss - logprobs[sample.positions - 1].sum() / n_tokens
            if sample.read is not None:
                read = read + logprobs[sample.read - 1].sum() / n_tokens
        (gradient,) = torch.autograd.grad(loss - self.config.observations * read, row)
        parts = zip(split(row.detach(), lengths), split(-gradient, lengths), strict=True)
        tokens = [TrainedTokens(denominators=logprobs, advantages=advantages) for logprobs, advantages in parts]
        _, norm = remote.train(samples, tokens, SURROGATE, self.config, lr)
        return StepSums(loss=float(loss.detach()), right=None, computed=sum(lengths), norm=norm)

    def measure(self, samples: Samples) -> HeldOutFigures:
        """The loss on samples that are not trained."""
        scored = self.weights.remote.forward(samples)
        learned = [logprobs[sample.positions - 1] for sample, logprobs in zip(samples, scored, strict=True)]
        return HeldOutFigures(loss=-float(torch.cat(learned).mean()), accuracy=None)

    def save(self, folder: Path) -> None:
        """Writes a model folder that names the weights, which the server keeps."""
        self.weights.export(folder, self.words)
