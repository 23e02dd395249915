"""What watches one update of GRPO, SFT or distillation: the sum of its gradients, terms of its loss by a plain pass, the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradus.policies.local.loading import LoadedModel
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.prepare import has_bf16_backward
from gradus.training.engine.update_figures import computes_exactly
from gradus.training.laws.movement import Movement, drawn_tensors, gradient_norm
from gradus.training.laws.runner import LawRunner, Pair, Pairs, apart
from gradus.training.trainer_config import TrainerConfig

_CANCELLED = 1e-6  # norm of a gradient of which nothing but rounding is left


def is_exact(loaded: LoadedModel, config: TrainerConfig) -> bool:
    """Says whether passes and backward passes are in float32."""
    return computes_exactly(loaded, config) and not has_bf16_backward(loaded, config)


class StepLaws:
    """Watches an update in a single process, and changes nothing. ``rounding``: of a gradient, as a share of its norm."""

    def __init__(self, runner: LawRunner, loaded: LoadedModel, config: TrainerConfig) -> None:
        self.runner, self.loaded, self._config = runner, loaded, config
        named = drawn_tensors(loaded.model, config.seed, runner.step)
        self._tensors = [tensor for _, tensor in named]
        self._names = f"{named[0][0]} and {len(named) - 1} other tensors"
        self.rounding = 1e-4 if is_exact(loaded, config) else 0.1
        self._movement: Movement | None = None

    def begins(self) -> None:
        """Before the passes: adds up what each brings to the gradient of one tensor."""
        self._sum: Tensor | float = 0.0
        self._hook = self._tensors[0].register_hook(self._add)

    def _add(self, gradient: Tensor) -> None:
        self._sum = self._sum + gradient.detach().float()

    def sums_again(self) -> Pairs:
        """Behind the passes: the gradient is the sum of those of the microbatches, and of nothing else."""
        self._hook.remove()
        gradient = master_of(self._tensors[0]).grad
        if gradient is not None:
            place = f"the sum of the gradients of {self._names}"
            yield apart(gradient.float(), torch.as_tensor(self._sum), 1e-4, place)

    def same_gradient(self, first: Tensor, second: Tensor, place: str) -> Pair:
        """Compares two gradients (n,) of the drawn tensors; rounding is that of the sums of the whole gradient."""
        # Where a token's terms cancel (a student that is its teacher, a solved task) only the rounding of probabilities is left.
        noise = 0.1 * self.rounding * gradient_norm(self.loaded.model) + _CANCELLED
        return apart(first, second, 5 * self.rounding, f"the gradient of {self._names}, {place}", noise)

    def gradient(self, losses: Iterable[Tensor]) -> Tensor:
        """(n,) the gradients of a loss, in parts, by the drawn tensors, one after another; one that has none counts 0."""
        total = torch.zeros(sum(map(torch.numel, self._tensors)), device=self.loaded.device)
        for loss in losses:
            parts = torch.autograd.grad(loss, self._tensors, materialize_grads=True)
            total += torch.cat([part.float().flatten() for part in parts])
        return total

    def moves(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """Before the optimizer's step."""
        self._movement = Movement(self.loaded, optimizer, self._config, lr, self.runner.step)

    def moved(self, norm: float) -> None:
        """Behind the optimizer's step."""
        if self._movement is not None:
            self.runner.check("optimizer", self._movement.again, norm)
            self._movement = None
