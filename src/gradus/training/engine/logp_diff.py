"""How far sampler and trainer differ in the log-probs of the same tokens, and how far they may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from gradus.policies.local.bfloat16_support import autocasts
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.engine.loss_step import TrainingError


@dataclass(frozen=True, kw_only=True)
class LogpDiff:
    """Absolute differences in nats: the mean, the 99th percentile and the largest."""

    mean: float
    p99: float
    max: float


# bfloat16 keeps 8 bits, so logits of 30 are rounded to 0.1: differences of a nat happen at rare tokens and are no bug.
_EXACT = LogpDiff(mean=1e-4, p99=1e-3, max=1e-3)
_LIMITS = {
    torch.bfloat16: LogpDiff(mean=0.1, p99=1.0, max=math.inf),
    torch.float16: LogpDiff(mean=0.02, p99=0.2, max=math.inf),
}
_SERVER = LogpDiff(mean=0.5, p99=math.inf, max=math.inf)  # another engine, or weights that are some steps old


def uses_trainer_logprobs(loaded: LoadedModel, config: GrpoConfig) -> bool:
    """Whether the ratio's denominator is what the trainer computes before the first update.

    With ``old_logprobs = "auto"`` it is, unless sampler and trainer are one function: in this process, in float32.
    """
    if config.old_logprobs != "auto":
        return config.old_logprobs == "trainer"
    return config.sampler != "local" or config.correction is not None or not _exact(loaded, config)


def logp_diff_limits(loaded: LoadedModel, config: GrpoConfig) -> LogpDiff:
    """What a run goes on with: ``max_logp_diff`` if it was set, else by who samples and in which dtype."""
    if config.max_logp_diff is not None:
        return LogpDiff(mean=math.inf, p99=math.inf, max=config.max_logp_diff)
    if config.sampler != "local" or config.correction is not None or config.async_level:
        return _SERVER
    if _exact(loaded, config):
        return _EXACT
    return _LIMITS.get(
        torch.bfloat16 if autocasts(config.autocast, loaded.device) else loaded.dtype, _LIMITS[torch.bfloat16]
    )


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
            "weight was changed. Check that temperature, top_k, top_p and the grammar are the same on both sides; compare with "
            "dtype = float32, where they agree best; set correction = 'truncate' if another process samples; or set "
            "max_logp_diff to go on all the same"
        )


def logp_diff_figures(measured: LogpDiff | None, limits: LogpDiff) -> dict[str, Any]:
    """What a step's record says of them; a figure without a limit has None for it."""
    figures = asdict(measured) if measured is not None else dict.fromkeys(asdict(limits))
    allowed = {name: limit if math.isfinite(limit) else None for name, limit in asdict(limits).items()}
    return {**{f"logp_diff_{name}": value for name, value in figures.items()}, "logp_diff_limits": allowed}
