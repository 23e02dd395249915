"""The figures of an update: sums over its microbatches, and how far sampler and trainer differ in log-probs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.algorithms import combine_metrics
from gradus.policies.local.cpu.support import autocasts
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.engine.loss_step import TrainingError

_MISMATCH = "mismatch_"  # begins the figures of a correction
_OWN = frozenset({"clip_fraction", "ratio_max", "approx_kl"})  # what the losses of the library measure


@dataclass
class UpdateSums:
    """The sums over the microbatches of one update."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    differences: list[np.ndarray] = field(default_factory=list[np.ndarray])
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list[Mapping[str, Tensor]])
    tokens: int = 1  # of the update, those without a gradient too
    scored: int = 1  # tokens whose entropies were added up
    measured: bool = False  # whether kl is that to a reference


def part_of_mean(name: str, value: Tensor, share: float) -> Tensor:
    """A microbatch's part of a mean over the tokens of an update; largest values are not added up."""
    return value if name.endswith("_max") else value * share


def pass_figures(updates: Sequence[UpdateSums]) -> dict[str, Any]:
    """Means over the updates of a pass; all denominators are those of the whole update, so microbatches have added up.

    A figure is None if a loss of one's own does not measure it. ``loss_metrics``: what such a loss measures besides, if anything.
    """
    if not updates:
        return dict.fromkeys(("loss", "kl", "entropy", "clip_fraction", "ratio_max"))
    metrics = [combine_metrics(update.metrics) for update in updates]
    kl = [
        update.kl if update.measured else _of_scored("approx_kl", one, update)
        for update, one in zip(updates, metrics, strict=True)
    ]
    others = dict.fromkeys(
        name for one in metrics for name in one if name not in _OWN and not name.startswith(_MISMATCH)
    )
    own = {
        name: (max if name.endswith("_max") else fmean)(one[name] for one in metrics if name in one) for name in others
    }
    return {
        "loss": sum(update.loss for update in updates) / len(updates),
        "kl": _mean(kl),
        "entropy": sum(update.entropy / update.scored for update in updates) / len(updates),
        "clip_fraction": _mean([one.get("clip_fraction") for one in metrics]),
        "ratio_max": max((one["ratio_max"] for one in metrics if "ratio_max" in one), default=None),
        **_mismatch(metrics, updates),
        **({"loss_metrics": own} if own else {}),
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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class LogpDiff:
    """Absolute differences in nats: the mean, the 99th percentile and the largest."""

    mean: float
    p99: float
    max: float


# bfloat16 keeps 8 bits, so logits of 30 are rounded to 0.1: differences of a nat happen at rare tokens without any bug.
_EXACT = LogpDiff(mean=1e-4, p99=1e-3, max=1e-3)
_ROUNDED = LogpDiff(mean=0.1, p99=1.0, max=math.inf)
_SERVER = LogpDiff(mean=0.5, p99=math.inf, max=math.inf)  # another engine, or weights that are some steps old


def uses_trainer_logprobs(loaded: LoadedModel, config: GrpoConfig) -> bool:
    """Says whether the ratio's denominator is what the trainer computes before the first update.

    It is, unless sampler and trainer are one function: in this process, in float32.
    """
    return config.sampler != "local" or config.correction is not None or not _exact(loaded, config)


def logp_diff_limits(loaded: LoadedModel, config: GrpoConfig) -> LogpDiff:
    """Returns what a run goes on with: ``max_logp_diff`` if it was set, else by who samples and in which dtype."""
    if config.max_logp_diff is not None:
        return LogpDiff(mean=math.inf, p99=math.inf, max=config.max_logp_diff)
    if config.sampler != "local" or config.correction is not None:
        return _SERVER
    return _EXACT if _exact(loaded, config) else _ROUNDED


def _exact(loaded: LoadedModel, config: GrpoConfig) -> bool:
    wide = loaded.dtype in (torch.float32, torch.float64)
    return wide and not autocasts(config.autocast, loaded.device) and not getattr(loaded.model, "is_quantized", False)


def measure_logp_diff(differences: Sequence[np.ndarray]) -> LogpDiff | None:
    """The three figures of absolute differences (A,) from several microbatches; None without any."""
    if not differences:
        return None
    values = np.concatenate(differences)
    return LogpDiff(mean=float(values.mean()), p99=float(np.quantile(values, 0.99)), max=float(values.max()))


def check_logp_diff(measured: LogpDiff | None, limits: LogpDiff) -> None:
    """Raise TrainingError if sampler and trainer differ by more than rounding explains."""
    if measured is None:
        return
    over = [name for name, limit in asdict(limits).items() if not getattr(measured, name) <= limit]
    if over:
        allowed = ", ".join(f"{name} {limit:.2g}" for name, limit in asdict(limits).items() if math.isfinite(limit))
        raise TrainingError(
            f"sampler and trainer disagree: log-probs of the same tokens differ by up to {measured.max:.2g} nats before the "
            f"first update (mean {measured.mean:.2g}, 99th percentile {measured.p99:.2g}); expected at most {allowed}. No "
            "weight was changed. In a run's first step look for what is not the same on both sides: temperature, top_k, top_p, the "
            "grammar, the tokenizer, or a token that was read. In a later step the sampler has older weights, or the episodes are of "
            "an earlier step. Compare with dtype = float32, where they agree best; set correction = 'truncate' if another process samples; or set "
            "max_logp_diff to go on all the same"
        )


def logp_diff_figures(measured: LogpDiff | None, limits: LogpDiff) -> dict[str, Any]:
    """Returns what a step's record says of them; a figure without a limit has None for it."""
    figures = asdict(measured) if measured is not None else dict.fromkeys(asdict(limits))
    allowed = {name: limit if math.isfinite(limit) else None for name, limit in asdict(limits).items()}
    return {**{f"logp_diff_{name}": value for name, value in figures.items()}, "logp_diff_limits": allowed}
