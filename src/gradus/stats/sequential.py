"""Looks at a comparison while its episodes come in, so that it can stop once it is decided (group-sequential design).

Pocock, Biometrika 64 (1977): five looks after equal shares of the tasks, each at the same level. The interval at that level holds at whichever
look the comparison stops (repeated confidence intervals; Jennison and Turnbull, JRSS B 51, 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal

from gradus.stats.distributions import normal_cdf, normal_quantile
from gradus.stats.paired import Paired

LOOKS = 5
ERROR = 0.05  # of all looks and all pairs of a table together
_OF_LOOK = 0.316  # of the error that all five looks may make (Pocock's table 1); a quarter of an error of 1 % or less
_OF_RARE_LOOK = 0.25
_HOPE = 0.5  # standard errors by which the true difference may exceed the one that was seen
_LEAST_CHANCE = 0.1

LookDecision = Literal["proven", "unlikely", "open"]


def level_of(*, looks: int = 1, pairs: int = 1) -> float:
    """Returns the level of each interval, such that all ``pairs`` that stand together, at all looks, err in at most 5 % (Bonferroni).

    >>> round(level_of(), 6), round(level_of(looks=LOOKS), 6), round(level_of(pairs=10), 6)
    (0.95, 0.9842, 0.995)
    """
    error = ERROR / pairs
    if looks == 1:
        return 1 - error
    return 1 - error * (_OF_LOOK if pairs == 1 else _OF_RARE_LOOK)


def look_sizes(tasks: int) -> list[int]:
    """Returns after how many of ``tasks`` the looks are: whole numbers that rise, the last is ``tasks``.

    >>> look_sizes(200), look_sizes(3)
    ([40, 80, 120, 160, 200], [1, 2, 3])
    """
    return sorted({-(-tasks * look // LOOKS) for look in range(1, LOOKS + 1)})


def decide(paired: Paired, tasks: int) -> LookDecision:
    """Says what a look at ``paired``, whose level is that of a look, decides, if at most ``tasks`` pairs will be seen.

    ``proven``: the difference is not 0. ``unlikely``: the rest of the tasks would prove a difference with a chance below 10 %, even if the true
    difference were half a standard error larger than what was seen. ``open``: anything else, and any look at too few pairs.
    """
    if paired.decision in ("better", "worse"):
        return "proven"
    deviations = paired.deviations()
    if deviations is None or paired.decision == "too few":
        return "open"
    share = paired.n / tasks
    if share >= 1:
        return "unlikely"
    size = abs(deviations)
    # Conditional power by the B-value (Lan and Wittes, Biometrics 44, 1988): what was seen, and a rest that drifts by the true difference.
    expected = size * sqrt(share) + (size + _HOPE) / sqrt(share) * (1 - share)
    needed = normal_quantile(0.5 + paired.level / 2)
    chance = normal_cdf((expected - needed) / sqrt(1 - share))
    return "unlikely" if chance < _LEAST_CHANCE else "open"


def decided(pairs: Sequence[Paired], tasks: int) -> bool:
    """True if no comparison is open any more."""
    return all(decide(paired, tasks) != "open" for paired in pairs)
