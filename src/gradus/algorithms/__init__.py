"""Group-relative policy optimization as pure functions over arrays.

Advantages are divided by one scale for the whole batch by default. Dividing by each group's own deviation, as the original
GRPO does, reweights hidden states within the groups and makes stated beliefs overconfident; ``scale="group"`` is there to
reproduce it.
"""

from gradus.algorithms.advantages import (
    ADVANTAGES,
    Baseline,
    Scale,
    gdpo_advantages,
    group_advantages,
    immediate_advantages,
    maxrl_advantages,
    overlong_penalty,
    reinforce_pp_advantages,
    rewards_to_go,
    span_advantages,
    token_advantages,
    turn_advantages,
)
from gradus.algorithms.corrections import CORRECTIONS, Correction, masked_weights, truncated_weights
from gradus.algorithms.entropy import entropy
from gradus.algorithms.grouping import group_std, live_rows, zero_variance_groups
from gradus.algorithms.kl import KL_ESTIMATORS, KlKind, kl_loss, kl_penalty
from gradus.algorithms.losses import LOSSES, LossResult, PolicyLoss, combine_metrics
from gradus.algorithms.presets import PRESETS, Preset

__all__ = [
    "ADVANTAGES",
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "LOSSES",
    "PRESETS",
    "Baseline",
    "Correction",
    "KlKind",
    "LossResult",
    "PolicyLoss",
    "Preset",
    "Scale",
    "combine_metrics",
    "entropy",
    "gdpo_advantages",
    "group_advantages",
    "group_std",
    "immediate_advantages",
    "kl_loss",
    "kl_penalty",
    "live_rows",
    "masked_weights",
    "maxrl_advantages",
    "overlong_penalty",
    "reinforce_pp_advantages",
    "rewards_to_go",
    "span_advantages",
    "token_advantages",
    "truncated_weights",
    "turn_advantages",
    "zero_variance_groups",
]
