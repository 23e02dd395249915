"""The optimizer's step, again, by the formulas of AdamW and Muon, on tensors that are drawn for each step (law 5)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from gradus.core import child_rng
from gradus.policies.local.loading import LoadedModel
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.optimizers import held_parameters, trainable
from gradus.training.laws.formulas import remaining
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, apart, holds, norm_of
from gradus.training.trainer_config import OptimizerConfig, TrainerConfig

_NUMBERS = 2**16  # so many weights, at least, are computed again
_EPSILON = 1e-8  # AdamW's
_QUINTIC = (3.4445, -4.7750, 2.0315)  # of Muon (Jordan et al., 2024), applied five times to the singular values
_EMBEDDING = re.compile("embed|lm_head|wte|wpe")  # the words of matrices outside of the blocks
_TENSORS = 8  # whose numbers are kept from one update to the next
Kept = Mapping[str, Any]


class Movement:
    """One step of the optimizer. Made before it; :meth:`again` says what it must have done."""

    def __init__(
        self, loaded: LoadedModel, optimizer: torch.optim.Optimizer, config: TrainerConfig, lr: float, step: int
    ) -> None:
        self._optimizer, self._config, self._lr = optimizer, config, lr
        self._norm = gradient_norm(loaded.model)
        self._drawn: list[tuple[str, nn.Parameter, Kept]] = []
        moments = moments_of(optimizer)
        for name, weight in drawn_tensors(loaded.model, config.seed, step):
            master = master_of(weight)
            if master.grad is None:
                continue
            before: dict[str, Tensor] = {}
            for key, value in {**moments[master], "value": master, "gradient": master.grad}.items():
                if isinstance(value, Tensor):
                    before[key] = value.detach().clone()
            self._drawn.append((name, weight, before))

    def again(self, norm: float) -> Pairs:
        """The norm of the gradient, which the run has as ``norm``, and where each drawn tensor must be."""
        yield Pair(norm, self._norm, "the norm of the gradient", 1e-3 * self._norm + 1e-12)
        limit = self._config.grad_clip or math.inf
        clip = min(1.0, limit / (self._norm + 1e-6))  # torch's clip_grad_norm_ adds so much
        moments = moments_of(self._optimizer)
        for name, weight, before in self._drawn:
            master, gradient = master_of(weight), clip * before["gradient"]
            after, moved = moments[master], master.detach() - before["value"]
            by_muon = self._config.optimizer == "muon" and gradient.dim() == 2 and not _EMBEDDING.search(name)
            place = f"the optimizer moves {name} by Muon, which is for matrices inside the blocks"
            yield holds("momentum_buffer" in after, place, by_muon)
            if "momentum_buffer" in after:
                average, rounding = after["momentum_buffer"], 0.2
                mean, moved, change = self._muon(before, gradient, moved)
            elif "exp_avg" in after:
                average, rounding = after["exp_avg"], 2e-3
                mean, change = self._adamw(before, gradient)
            else:
                raise NotMeasured("AdamW or Muon")
            # A mean of opposite gradients is small beside their rounding.
            noise = 1e-4 * norm_of(gradient) + 1e-10
            yield apart(average, mean, 1e-3, f"the optimizer's mean of the clipped gradients of {name}", noise)
            # The difference of two float32 weights is rounded as they are, however small the step.
            noise = 3e-7 * norm_of(before["value"]) + 1e-10
            yield apart(moved, change, rounding, f"the change of {name} at rate {self._lr:.3g}", noise)
            yield apart(weight.detach(), master.detach().to(weight), 1e-6, f"{name}, against its float32 master")

    def _adamw(self, before: Kept, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The mean gradient, and the change of the weights."""
        first, second = self._config.betas
        steps = float(before.get("step", 0.0)) + 1
        # Before the first step there are no moments: 0.
        mean = first * before.get("exp_avg", 0.0) + (1 - first) * gradient
        square = second * before.get("exp_avg_sq", 0.0) + (1 - second) * gradient**2
        size = (square / (1 - second**steps)).sqrt() + _EPSILON
        decays = gradient.dim() > 1 or self._config.optimizer == "muon"
        decay = self._config.weight_decay if decays else 0.0
        step = mean / (1 - first**steps) / size
        return mean, -self._lr * (step + decay * before["value"])

    def _muon(self, before: Kept, gradient: Tensor, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean gradient; what the weights have moved and must, along the large singular vectors of the nesterov mean.

        Muon brings singular values near 1. Of small ones its products in bfloat16 make anything.
        """
        momentum = 0.95 if self._config.betas[0] else 0.0
        mean = momentum * before.get("momentum_buffer", 0.0) + (1 - momentum) * gradient
        linalg: Any = torch.linalg  # it has no types
        nesterov = (1 - momentum) * gradient + momentum * mean
        u, values, vh = linalg.svd(nesterov / max(norm_of(nesterov), 1e-7), full_matrices=False)
        large = values > 0.1 * values.max()
        u, values, vh = u[:, large], values[large], vh[large]
        a, b, c = _QUINTIC
        for _ in range(5):
            values = a * values + b * values**3 + c * values**5
        rows, columns = gradient.shape
        update: Tensor = math.sqrt(max(1.0, rows / columns)) * values.diag()
        decay: Tensor = self._config.weight_decay * u.mT @ before["value"] @ vh.mT
        # One schedule moves both optimizers: Muon's rate is its peak's share of it.
        rate = self._lr * self._config.muon_lr / self._config.lr
        return mean, u.mT @ moved @ vh.mT, -rate * (update + decay)


def fingerprint(loaded: LoadedModel, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Sums over numbers of some weights, and over what an optimizer keeps of them."""
    moments = moments_of(optimizer)
    named = list(trainable(loaded.model).items())
    sums: dict[str, float] = {}
    for name, weight in named[:: 1 + len(named) // _TENSORS]:
        master = master_of(weight)
        for part, value in {"weight": weight, "master": master, **moments[master]}.items():
            if isinstance(value, Tensor):
                sums[f"{part} of {name}"] = some_sum(value)
    return sums


def some_sum(tensor: Tensor) -> float:
    """The sum of at most 64 numbers of a tensor, spread over it, in float64."""
    return float(tensor.detach().flatten()[:: 1 + tensor.numel() // 64].double().sum())


class BetweenUpdates:
    """Holds weights and moments as a watched update left them, until the next update begins."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._end: dict[str, float] = {}

    def begins(self, laws: LawRunner, optimizer: torch.optim.Optimizer) -> None:
        """Before an update: nothing has moved since the last one, if that was watched."""
        if self._end:
            laws.check("optimizer", unmoved, self._end, fingerprint(self._loaded, optimizer))
            # A resumed run, which did not watch the update before its checkpoint, has the same metrics.
            laws.worst.pop("optimizer", None)
            self.forget()

    def ends(self, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        """Behind an update that is watched; returns the fingerprint."""
        self._end = fingerprint(self._loaded, optimizer)
        return self._end

    def forget(self) -> None:
        """Weights or moments are going to be others."""
        self._end = {}


def unmoved(before: Mapping[str, float], now: Mapping[str, float]) -> Pairs:
    """Between two updates nothing moves, and frozen tensors never: what an update finds is what the one before it left."""
    for name in before:
        place = f"the {name}, against what it was before (at the end of an update, or of the run's beginning): a sum over some numbers"
        yield Pair(now.get(name, 0.0), before[name], place)


def drawn_tensors(model: nn.Module, seed: int, step: int) -> list[tuple[str, nn.Parameter]]:
    """Returns trainable tensors by chance, until they hold 2**18 numbers."""
    named = list(trainable(model).items())
    child_rng(seed, "laws", step).shuffle(named)
    sizes = accumulate(tensor.numel() for _, tensor in named)
    return named[: 1 + sum(size < _NUMBERS for size in sizes)]


def gradient_norm(model: nn.Module) -> float:
    """The norm of the whole gradient."""
    gradients = [master_of(weight).grad for weight in trainable(model).values()]
    return math.hypot(*(norm_of(gradient) for gradient in gradients if gradient is not None))


def moments_of(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, Kept]:
    """What an optimizer keeps of each parameter."""
    return dict(zip(held_parameters(optimizer), _moments(optimizer.state_dict()), strict=True))


def _moments(document: Mapping[str, Any]) -> list[Kept]:
    """What an optimizer's state holds of each parameter, in the order of its groups; one of parts holds those of its parts."""
    if "inner" in document:
        return _moments(document["inner"])
    if "parts" in document:
        return [state for part in document["parts"] for state in _moments(part)]
    count = sum(len(group["params"]) for group in document["param_groups"])
    return [document["state"].get(index, {}) for index in range(count)]


def scheduled_rate(config: OptimizerConfig, steps: int, step: int, lr: float) -> Pairs:
    """The learning rate of a step of ``steps``: a straight warm-up, then the peak times the share that is left, down to ``min_lr_ratio`` of it."""
    warm = round(config.warmup * steps)
    if step <= warm:
        share = step / warm
    else:
        passed = min(1.0, (step - 1 - warm) / (steps - warm))
        share = config.min_lr_ratio + remaining(config.schedule, passed) * (1.0 - config.min_lr_ratio)
    again = config.lr * share
    yield Pair(lr, again, "the learning rate", 1e-6 * config.lr)
