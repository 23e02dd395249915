"""Intervals, paired comparison, power and rank correlation. One definition each; numpy and scipy only.

Undefined is None, never 0: an interval needs two values (or two clusters), a correlation needs two that differ.
"""

from gradus.stats.binary import score_interval_of_pairs, score_p
from gradus.stats.crossed import crossed_difference, crossed_interval
from gradus.stats.formatting import (
    format_interval,
    format_money,
    format_number,
    format_p,
    format_seconds,
    format_signed,
)
from gradus.stats.intervals import Interval, mean_interval, mean_of, pass_at_k, wilson
from gradus.stats.paired import LEAST_DIFFERING, LEAST_UNITS, Decision, Paired, holm, paired_difference
from gradus.stats.power import episodes_needed, paired_power, units_needed
from gradus.stats.ranks import spearman, spearman_within
from gradus.stats.sequential import ERROR, LOOKS, decide, decided, level_of, look_sizes

__all__ = [
    "ERROR",
    "LEAST_DIFFERING",
    "LEAST_UNITS",
    "LOOKS",
    "Decision",
    "Interval",
    "Paired",
    "crossed_difference",
    "crossed_interval",
    "decide",
    "decided",
    "episodes_needed",
    "format_interval",
    "format_money",
    "format_number",
    "format_p",
    "format_seconds",
    "format_signed",
    "holm",
    "level_of",
    "look_sizes",
    "mean_interval",
    "mean_of",
    "paired_difference",
    "paired_power",
    "pass_at_k",
    "score_interval_of_pairs",
    "score_p",
    "spearman",
    "spearman_within",
    "units_needed",
    "wilson",
]
