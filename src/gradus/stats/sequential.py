"""Looks at a comparison while its episodes come in, so that it can stop once it is decided (group-sequential design).

Pocock, Biometrika 64 (1977): five looks after equal shares of the tasks, each at the same level. The interval at that level holds at whichever
look the comparison stops (repeated confidence intervals; Jennison and Turnbull, JRSS B 51, 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import Literal

from gradus.stats.paired import Paired

LOOKS = 5
LOOK_ERROR = 0.0158  # two-sided, of each look: all five together err in 5 % (Pocock's table 1)
LOOK_LEVEL = 1 - LOOK_ERROR
_HOPE = 0.5  # standard errors by which the true difference may exceed the one that was seen
_LEAST_CHANCE = 0.1
_LEAST_PAIRS = 6  # below it no difference is called proven (docs/evaluation.md)

Decision = Literal["proven", "unlikely", "open"]


def look_sizes(tasks: int) -> list[int]:
    """Returns after how many of ``tasks`` the looks are: whole numbers that rise, the last is ``tasks``.

    >>> look_sizes(200), look_sizes(3)
    ([40, 80, 120, 160, 200], [1, 2, 3])
    """
    return sorted({-(-tasks * look // LOOKS) for look in range(1, LOOKS + 1)})


def decide(paired: Paired, tasks: int) -> Decision:
    """Says what a look at ``paired`` decides, if at most ``tasks`` pairs will be seen.

    ``proven``: the difference is not 0. ``unlikely``: the rest of the tasks would prove a difference with a chance below 10 %, even if the true
    difference were half a standard error larger than what was seen. ``open``: anything else, undefined differences included.
    """
    deviations = paired.deviations()
    if deviations is None or paired.p is None or paired.n < _LEAST_PAIRS:
        return "open"
    if paired.p < LOOK_ERROR:
        return "proven"
    share = paired.n / tasks
    if share >= 1:
        return "unlikely"
    size = abs(deviations)
    expected = size * sqrt(share) + (size + _HOPE) / sqrt(share) * (1 - share)
    needed = NormalDist().inv_cdf(1 - LOOK_ERROR / 2)
    chance = NormalDist().cdf((expected - needed) / sqrt(1 - share))
    return "unlikely" if chance < _LEAST_CHANCE else "open"


def decided(pairs: Sequence[Paired], tasks: int) -> bool:
    """True if no comparison is open any more."""
    return all(decide(paired, tasks) != "open" for paired in pairs)
