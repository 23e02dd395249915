"""The two requests that train on a Tinker server: a forward pass, and a gradient with its optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core import ConfigError
from gradus.core.frozen_record import frozen_record
from gradus.policies.tinker.service import TinkerService

_LOSS = "importance_sampling"


@frozen_record
class TrainingRequests:
    """A server, and its ``client`` of the trained weights."""

    service: TinkerService
    client: Any

    def datum(self, ids: Sequence[int], targets: Any, **inputs: Any) -> Any:
        """One sequence (T,) as the client takes it; ``targets`` and ``inputs``: arrays (T - 1,)."""
        types = self.service.sdk.types
        # Cross entropy wants weights; importance sampling wants log-probs and advantages in their place.
        weights = {} if inputs else {"weights": np.zeros(len(targets), np.float32)}
        columns = {"target_tokens": targets, **weights, **inputs}
        tensors = {name: types.TensorData.from_numpy(values) for name, values in columns.items()}
        return types.Datum(model_input=types.ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=tensors)

    def done(self, request: str, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Sends a request, and waits for its result."""
        with self.service.explained(request):
            future = send(*args, **options)
        return self.service.result(future, request)

    def forward(self, data: Sequence[Any]) -> list[Tensor]:
        """Log-probs (T - 1,) float32 of the targets of each sequence. Raises ConfigError if the server gives none."""
        outputs = self.done("compute log-probs", self.client.forward, list(data), "cross_entropy").loss_fn_outputs
        try:
            return [torch.tensor(output["logprobs"].to_numpy(), dtype=torch.float32).reshape(-1) for output in outputs]
        except KeyError as error:
            raise ConfigError(
                f"{self.service.url} gives no log-probs in training; train on a server that does"
            ) from error

    def step(self, data: Sequence[Any], adam: Mapping[str, float]) -> float | None:
        """Takes an optimizer step on the loss of ``data``; both requests are sent before either is answered.

        Returns the gradient's norm; None if the server does not give it.
        """
        request = f"train with the loss {_LOSS}"
        with self.service.explained(request):
            gradient = self.client.forward_backward(list(data), _LOSS)
            stepped = self.client.optim_step(self.service.sdk.types.AdamParams(**adam))
        self.service.result(gradient, request)
        metrics: Mapping[str, float] = self.service.result(stepped, "take an optimizer step").metrics or {}
        norms = [value for name, value in metrics.items() if name.rpartition("/")[2].startswith("grad_norm")]
        return float(norms[0]) if norms else None
