"""Intervals, paired comparison, power and rank correlation. One definition each; numpy and scipy only.

Undefined is None, never 0: an interval needs two values (or two clusters), a correlation needs two that differ.
"""

from gradus.stats.binary import sign_test, tango_interval
from gradus.stats.crossed import crossed_difference, crossed_interval
from gradus.stats.formatting import format_interval, format_money, format_number, format_p, format_signed
from gradus.stats.intervals import Interval, mean_interval, mean_of, pass_at_k, wilson
from gradus.stats.paired import Paired, holm, paired_difference
from gradus.stats.power import episodes_needed, paired_power, sign_test_pairs, sign_test_power, units_needed
from gradus.stats.ranks import spearman, spearman_within
from gradus.stats.sequential import LOOK_LEVEL, LOOKS, decide, decided, look_sizes

__all__ = [
    "LOOKS",
    "LOOK_LEVEL",
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
    "format_signed",
    "holm",
    "look_sizes",
    "mean_interval",
    "mean_of",
    "paired_difference",
    "paired_power",
    "pass_at_k",
    "sign_test",
    "sign_test_pairs",
    "sign_test_power",
    "spearman",
    "spearman_within",
    "tango_interval",
    "units_needed",
    "wilson",
]
