"""The figures of an update: sums over its microbatches, and how far sampler and trainer differ in log-probs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.algorithms import combine_metrics
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.policies.local.cpu.support import autocasts
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.engine.loss_step import TrainingError
from gradus.training.trainer_config import TrainerConfig

_MISMATCH = "mismatch_"  # begins the figures of a correction
_LIBRARY = frozenset({"clip_fraction", "ratio_max", "approx_kl"})  # what the losses of the library measure

Differences = np.ndarray[Any, np.dtype[Any]]


@frozen_record
class UpdateSums:
    """The sums over the microbatches of one update, in all processes.

    ``kl``: to the reference; None without one. ``metrics``: of the loss, one record for each microbatch. ``tokens``: of the update, those
    without a gradient too. ``scored``: those that were trained. ``entropy``: of these; None if nobody measured it. ``differences``: (A,)
    of sampler and trainer, absolute, of each microbatch.
    """

    loss: float = 0.0
    kl: float | None = None
    entropy: float | None = 0.0
    metrics: Sequence[Mapping[str, Tensor]] = ()
    tokens: int = 1
    scored: int = 1
    differences: Sequence[Differences] = ()


def add_up(parts: Sequence[UpdateSums]) -> UpdateSums:
    """The sums of an update from those of its microbatches."""
    divergences = [part.kl for part in parts if part.kl is not None]
    return UpdateSums(
        loss=sum(part.loss for part in parts),
        kl=sum(divergences) if divergences else None,
        entropy=sum(part.entropy or 0.0 for part in parts),
        metrics=list(chain.from_iterable(part.metrics for part in parts)),
        tokens=parts[0].tokens if parts else 1,
        scored=sum(part.scored for part in parts),
        differences=list(chain.from_iterable(part.differences for part in parts)),
    )


def part_of_mean(name: str, value: Tensor, share: float) -> Tensor:
    """A microbatch's part of a mean over the tokens of an update; largest values are not added up."""
    return value if name.endswith("_max") else value * share


def pass_figures(updates: Sequence[UpdateSums]) -> JsonDict:
    """Means over the updates of a pass. All denominators are those of the whole update, so microbatches have added up.

    A figure is None if a loss of one's own does not measure it. ``loss_metrics``: what such a loss measures besides, if anything.
    """
    measured = [combine_metrics(update.metrics) for update in updates]
    ratios = [metrics["ratio_max"] for metrics in measured if "ratio_max" in metrics]
    figures: JsonDict = {
        "loss": _mean([update.loss for update in updates]),
        "kl": _mean([_kl(update, metrics) for update, metrics in zip(updates, measured, strict=True)]),
        "entropy": _mean([_entropy(update) for update in updates]),
        "clip_fraction": _mean([metrics.get("clip_fraction") for metrics in measured]),
        "ratio_max": max(ratios, default=None),
    }
    scored = sum(update.scored for update in updates)
    extra: dict[str, float] = {}
    for name in dict.fromkeys(chain.from_iterable(measured)):
        present = [
            (metrics[name], update.scored) for metrics, update in zip(measured, updates, strict=True) if name in metrics
        ]
        values = [value for value, _ in present]
        if name.endswith("_max"):
            figure = max(values)
        elif name.startswith(_MISMATCH):  # a mean over all tokens
            figure = sum(value * (tokens / scored) for value, tokens in present)
        else:
            figure = fmean(values)
        if name.startswith(_MISMATCH):
            figures[name] = figure
        elif name not in _LIBRARY:
            extra[name] = figure
    if extra:
        figures["loss_metrics"] = extra
    return figures


def _entropy(update: UpdateSums) -> float | None:
    return None if update.entropy is None else update.entropy / update.scored


def _kl(update: UpdateSums, metrics: Mapping[str, float]) -> float | None:
    """The divergence from the reference, or the one from the sampler that the loss measured."""
    if update.kl is not None or "approx_kl" not in metrics:
        return update.kl
    # The loss divides by all tokens of the update; the mean is one over those that were scored.
    return metrics["approx_kl"] * update.tokens / update.scored


def _mean(values: Sequence[float | None]) -> float | None:
    """None if there is no value, or one of them is missing."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    return sum(present) / len(present)


@frozen_record
class LogpDiff:
    """Absolute differences in nats: the mean, the 99th percentile and the largest."""

    mean: float
    p99: float
    max: float


# bfloat16 keeps 8 bits, so logits of 30 are rounded to 0.1: differences of a nat happen at rare tokens without any bug.
EXACT_LIMITS = LogpDiff(mean=1e-4, p99=1e-3, max=1e-3)
_ROUNDED = LogpDiff(mean=0.1, p99=1.0, max=math.inf)
SERVER_LIMITS = LogpDiff(mean=0.5, p99=math.inf, max=math.inf)  # another engine, or weights that are some steps old


def uses_trainer_logprobs(loaded: LoadedModel, config: GrpoConfig) -> bool:
    """Says whether the ratio's denominator is what the trainer computes before the first update.

    It is, unless sampler and trainer are one function: in this process, in float32.
    """
    return _samples_elsewhere(config) or not computes_exactly(loaded, config)


def logp_diff_limits(loaded: LoadedModel, config: GrpoConfig) -> LogpDiff:
    """Returns what a run goes on with: ``max_logp_diff`` if it was set, else by who samples and in which dtype."""
    if config.max_logp_diff is not None:
        return LogpDiff(mean=math.inf, p99=math.inf, max=config.max_logp_diff)
    if _samples_elsewhere(config):
        return SERVER_LIMITS
    return EXACT_LIMITS if computes_exactly(loaded, config) else _ROUNDED


def _samples_elsewhere(config: GrpoConfig) -> bool:
    return config.sampler != "local" or config.correction is not None


def computes_exactly(loaded: LoadedModel, config: TrainerConfig) -> bool:
    """Says whether a model computes in float32 at least, as it is."""
    wide = loaded.dtype in (torch.float32, torch.float64)
    rounded = autocasts(config.autocast, loaded.device) or getattr(loaded.model, "is_quantized", False)
    return wide and not rounded


def measure_logp_diff(differences: Sequence[Differences]) -> LogpDiff | None:
    """Measures absolute differences (A,) of several microbatches; None without any."""
    if not differences:
        return None
    values = np.concatenate(differences)
    return LogpDiff(mean=float(values.mean()), p99=float(np.quantile(values, 0.99)), max=float(values.max()))


def check_logp_diff(measured: LogpDiff | None, limits: LogpDiff) -> None:
    """Raises TrainingError if sampler and trainer differ by more than rounding explains."""
    if measured is None:
        return
    figures, allowed = asdict(measured), asdict(limits)
    if all(figures[name] <= limit for name, limit in allowed.items()):
        return
    expected = ", ".join(f"{name} {limit:.2g}" for name, limit in allowed.items() if math.isfinite(limit))
    raise TrainingError(
        f"sampler and trainer disagree: log-probs of the same tokens differ by up to {measured.max:.2g} nats before the "
        f"first update (mean {measured.mean:.2g}, 99th percentile {measured.p99:.2g}); expected at most {expected}. No "
        "weight was changed. In a run's first step look for what is not the same on both sides: temperature, top_k, top_p, the "
        "grammar, the tokenizer, or a token that was read. In a later step the sampler has older weights, or the episodes are of "
        "an earlier step. Compare with dtype = float32, where they agree best; set correction = 'truncate' if another process samples; or set "
        "max_logp_diff to go on all the same"
    )


def logp_diff_figures(measured: LogpDiff | None, limits: LogpDiff) -> JsonDict:
    """Returns what a step's record says of them; a figure without a limit has None for it."""
    allowed = {name: limit if math.isfinite(limit) else None for name, limit in asdict(limits).items()}
    return {
        "logp_diff_mean": measured.mean if measured else None,
        "logp_diff_p99": measured.p99 if measured else None,
        "logp_diff_max": measured.max if measured else None,
        "logp_diff_limits": allowed,
    }
