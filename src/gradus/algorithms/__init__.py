"""Group-relative policy optimization as pure functions over arrays, and the registry of named algorithms.

The default algorithm divides advantages by one scale for the whole batch. Dividing by each group's own deviation, as the
published GRPO does, reweights hidden states within the groups and makes stated beliefs overconfident.
"""

from gradus.algorithms.advantages import (
    Baseline,
    Scale,
    gdpo_advantages,
    group_advantages,
    immediate_advantages,
    maxrl_advantages,
    reinforce_pp_advantages,
    rewards_to_go,
    span_advantages,
)
from gradus.algorithms.corrections import CORRECTIONS
from gradus.algorithms.kl import KL_ESTIMATORS, entropy, kl_terms
from gradus.algorithms.losses import LOSSES, Average, LossResult, PolicyLoss, average, combine_metrics
from gradus.algorithms.registry import (
    Algorithm,
    Credit,
    EpisodeRewards,
    algorithm_names,
    find_algorithm,
)

__all__ = [
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "LOSSES",
    "Algorithm",
    "Average",
    "Baseline",
    "Credit",
    "EpisodeRewards",
    "LossResult",
    "PolicyLoss",
    "Scale",
    "algorithm_names",
    "average",
    "combine_metrics",
    "entropy",
    "find_algorithm",
    "gdpo_advantages",
    "group_advantages",
    "immediate_advantages",
    "kl_terms",
    "maxrl_advantages",
    "reinforce_pp_advantages",
    "rewards_to_go",
    "span_advantages",
]
