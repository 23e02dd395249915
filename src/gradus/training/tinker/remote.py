"""A model that a Tinker server trains: log-probs come back, gradients with respect to log-probs go out.

Any loss C of log-probs is trained by two requests that every server has. A forward pass gives the log-probs, C is computed here, and
``importance_sampling`` with these log-probs as the denominator has ratio 1, so its gradient is that of ``-advantage x log-prob``: with
advantage -dC/dlogp it is the gradient of C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradus.core.frozen_record import frozen_record
from gradus.policies.tinker.policy import TokenCounts
from gradus.training.data.sequences import Samples, TrainingSample, ints
from gradus.training.tinker.reduction import Reduction
from gradus.training.tinker.requests import TrainingRequests
from gradus.training.trainer_config import TrainerConfig

_EPS = 1e-8  # of torch's AdamW


@frozen_record
class RemoteModel:
    """The trained weights on a server, and where tokens are counted."""

    requests: TrainingRequests
    reduction: Reduction
    counts: TokenCounts

    def forward(self, samples: Samples) -> list[Tensor]:
        """Log-probs (T - 1,) float32 of each sample's tokens behind the first, under the weights as they are."""
        self.counts.prompt += sum(len(sample) - 1 for sample in samples)
        return self.requests.forward([self._datum(sample) for sample in samples])

    def train(
        self,
        samples: Samples,
        logprobs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        config: TrainerConfig,
        lr: float,
    ) -> float | None:
        """Takes one optimizer update; returns the gradient's norm, None if the server does not give it.

        Args:
            logprobs: (T - 1,) of each sample, from :meth:`forward` with the weights as they are.
            gradients: (A,) of the loss with respect to the log-probs of the trained tokens.
        """
        lengths = [len(sample) - 1 for sample in samples]
        data: list[Any] = []
        for sample, denominators, gradient in zip(samples, logprobs, gradients, strict=True):
            advantages = torch.zeros(len(sample) - 1)
            advantages[sample.positions - 1] = -gradient.float() * self.reduction.divisor(len(sample) - 1, lengths)
            data.append(self._datum(sample, logprobs=denominators.numpy(), advantages=advantages.numpy()))
        self.counts.trained += sum(lengths)
        adam = {
            "learning_rate": lr,
            "weight_decay": config.weight_decay,
            "beta1": config.betas[0],
            "beta2": config.betas[1],
            "eps": _EPS,
            "grad_clip_norm": config.grad_clip if self.reduction.clips else 0.0,
        }
        return self.requests.step(data, adam)

    def _datum(self, sample: TrainingSample, **inputs: Any) -> Any:
        targets = sample.ids[1:].clone()
        targets[sample.positions - 1] = sample.learned_ids
        return self.requests.datum(ints(sample.ids), targets.numpy(), **inputs)
