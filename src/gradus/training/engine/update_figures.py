"""What the microbatches of an update add up to, and the figures of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gradus.algorithms import combine_metrics

# What Gradus's own losses measure. What another one gives besides stands apart, so that no name means two things.
_OWN = frozenset({"clip_fraction", "ratio_mean", "ratio_max", "approx_kl", "log_ratio_max"})

_MISMATCH = "mismatch_"  # begins the figures of a correction


@dataclass
class UpdateSums:
    """What the microbatches of one update add up to."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    read: float = 0.0
    differences: list[np.ndarray] = field(default_factory=list[np.ndarray])
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list[Mapping[str, Tensor]])
    tokens: int = 1  # of the update, those without a gradient too
    scored: int = 1  # tokens whose entropies were added up
    shown: int = 0  # tokens whose losses ``read`` adds up, 0 if none are learned
    measured: bool = False  # whether kl is that to a reference


def part_of_mean(name: str, value: Tensor, share: float) -> Tensor:
    """A microbatch's part of a mean over the tokens of an update; largest values are not added up."""
    return value if name.endswith("_max") else value * share


def pass_figures(updates: Sequence[UpdateSums]) -> dict[str, Any]:
    """Means over the updates of a pass; all denominators are those of the whole update, so microbatches have added up.

    ``loss_metrics``: what a loss of one's own measures besides, if anything.
    """
    if not updates:
        return dict.fromkeys(("loss", "kl", "entropy", "clip_fraction", "ratio_max"))
    metrics = [combine_metrics(update.metrics) for update in updates]
    count, shown = len(updates), sum(update.shown for update in updates)
    kl = [
        update.kl if update.measured else _of_scored("approx_kl", one, update)
        for update, one in zip(updates, metrics, strict=True)
    ]
    others = dict.fromkeys(
        name for one in metrics for name in one if name not in _OWN and not name.startswith(_MISMATCH)
    )
    others = {name: _over_updates(name, metrics) for name in others}
    return {
        "loss": sum(update.loss for update in updates) / count,
        "kl": _mean(kl),
        "entropy": sum(update.entropy / update.scored for update in updates) / count,
        "clip_fraction": _over_updates("clip_fraction", metrics),
        "ratio_max": _over_updates("ratio_max", metrics),
        **({"observation_loss": sum(update.read for update in updates) / shown} if shown else {}),
        **_mismatch(metrics, updates),
        **({"loss_metrics": others} if others else {}),
    }


def _of_scored(name: str, metrics: Mapping[str, float], update: UpdateSums) -> float | None:
    """The mean over the tokens that were scored of what a loss divides by all tokens of the update."""
    return metrics[name] * update.tokens / update.scored if name in metrics else None


def _mismatch(metrics: Sequence[Mapping[str, float]], updates: Sequence[UpdateSums]) -> dict[str, float]:
    """Of a correction's figures the means over all scored tokens, and the largest."""
    shares = [update.scored / sum(each.scored for each in updates) for update in updates]
    names = dict.fromkeys(name for one in metrics for name in one if name.startswith(_MISMATCH))
    return {
        name: max(one[name] for one in metrics)
        if name.endswith("_max")
        else sum(one[name] * share for one, share in zip(metrics, shares, strict=True))
        for name in names
    }


def _over_updates(name: str, metrics: Sequence[Mapping[str, float]]) -> float | None:
    """The largest over the updates of what ends in ``_max``, the mean of anything else."""
    if not name.endswith("_max"):
        return _mean([one.get(name) for one in metrics])
    return max((one[name] for one in metrics if name in one), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    """None if a loss of one's own does not say it."""
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) else None
