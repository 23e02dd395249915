"""A model that a Tinker server trains: log-probs come back, gradients with respect to log-probs go out.

Any loss C of log-probs is trained by two requests that every server has. A forward pass gives the log-probs, C is computed here, and
``importance_sampling`` with these log-probs as the denominator has ratio 1, so its gradient is that of ``-advantage x log-prob``: with
advantage -dC/dlogp it is the gradient of C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core import ConfigError
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.tinker.service import TinkerService
from gradus.training.data.sequences import TrainingSample
from gradus.training.tinker.reduction import Reduction
from gradus.training.trainer_config import TrainerConfig

_EPS = 1e-8  # of torch's AdamW


@dataclass(frozen=True, kw_only=True)
class NamedLoss:
    """A loss that servers have by name, and its settings there."""

    name: str
    settings: Mapping[str, float]


SURROGATE = NamedLoss(name="importance_sampling", settings={})


@dataclass(frozen=True, kw_only=True)
class TrainedTokens:
    """What a server is sent of one sample: ``denominators`` and ``advantages``, (T - 1,) for its tokens behind the first."""

    denominators: Tensor
    advantages: Tensor


class RemoteModel:
    """The trained weights on a server. ``client``: its training client; ``reduction``: None until the server is measured."""

    def __init__(self, service: TinkerService, client: Any, reduction: Reduction | None, counts: TokenCounts) -> None:
        self.service, self.client, self.counts = service, client, counts
        self._reduction = reduction

    @property
    def reduction(self) -> Reduction:
        """How the server adds up the losses of tokens."""
        assert self._reduction is not None, "the server has not been measured"
        return self._reduction

    def forward(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """Log-probs (T - 1,) float32 of each sample's tokens behind the first, under the weights as they are."""
        data = [self._datum(sample, {"weights": np.zeros(len(sample) - 1, np.float32)}) for sample in samples]
        with self.service.explained("compute log-probs"):
            future = self.client.forward(data, "cross_entropy")
        self.counts.prompt += sum(len(sample) - 1 for sample in samples)
        return self._logprobs(future, "compute log-probs")

    def train(
        self,
        samples: Sequence[TrainingSample],
        tokens: Sequence[TrainedTokens],
        loss: NamedLoss,
        config: TrainerConfig,
        lr: float,
    ) -> tuple[list[Tensor], float | None]:
        """Takes one optimizer update. Both requests are sent before either is answered.

        Returns the log-probs (T - 1,) from before it, and the gradient's norm; None if the server does not give one.
        """
        data: list[Any] = []
        for sample, sent in zip(samples, tokens, strict=True):
            lengths = [len(each) - 1 for each in samples]
            divisor = self.reduction.divisor(len(sample) - 1, lengths)
            inputs = {"logprobs": sent.denominators, "advantages": sent.advantages * divisor}
            data.append(self._datum(sample, {name: value.float().numpy() for name, value in inputs.items()}))
        with self.service.explained(f"train with the loss {loss.name}"):
            gradient = self.client.forward_backward(data, loss.name, dict(loss.settings) or None)
            stepped = self.client.optim_step(self._adam(config, lr))
        self.counts.trained += sum(len(sample) - 1 for sample in samples)
        logprobs = self._logprobs(gradient, f"train with the loss {loss.name}")
        return logprobs, gradient_norm(self.service.result(stepped, "take an optimizer step"))

    def _adam(self, config: TrainerConfig, lr: float) -> Any:
        return self.service.sdk.types.AdamParams(
            learning_rate=lr,
            beta1=config.betas[0],
            beta2=config.betas[1],
            eps=_EPS,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip if self.reduction.clips else 0.0,
        )

    def _datum(self, sample: TrainingSample, inputs: Mapping[str, Any]) -> Any:
        types = self.service.sdk.types
        targets = sample.ids[1:].clone()
        targets[sample.positions - 1] = sample.learned_ids
        columns = {"target_tokens": targets.numpy(), **inputs}
        return types.Datum(
            model_input=types.ModelInput.from_ints(sample.ids[:-1].tolist()),
            loss_fn_inputs={name: types.TensorData.from_numpy(values) for name, values in columns.items()},
        )

    def _logprobs(self, future: Any, request: str) -> list[Tensor]:
        outputs = self.service.result(future, request).loss_fn_outputs
        try:
            return [torch.tensor(output["logprobs"].to_numpy(), dtype=torch.float32).reshape(-1) for output in outputs]
        except KeyError as error:
            raise ConfigError(
                f"{self.service.url} gives no log-probs when asked to {request}; train on a server that does"
            ) from error


def gradient_norm(response: Any) -> float | None:
    """The gradient's norm in the metrics of an optimizer step; None if there is none."""
    metrics: Mapping[str, float] = response.metrics or {}
    names = [name for name in metrics if name.rpartition("/")[2].startswith("grad_norm")]
    return float(metrics[names[0]]) if names else None
