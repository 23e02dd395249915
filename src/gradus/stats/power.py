"""Computes how many independent pairs show a difference: those of the test by which a difference is claimed."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite, sqrt

import numpy as np

from gradus.stats.distributions import (
    binomial_cdfs,
    chi_square_quantile,
    noncentral_t_cdf,
    normal_quantile,
    student_quantile,
)
from gradus.stats.intervals import score_interval
from gradus.stats.paired import LEAST_UNITS, Paired

_POWER = 0.8
_MOST = 1e15  # the square of what is larger may be beyond a float
_LARGE = 3000  # beyond, t and normal agree to far below one episode in a thousand
# One-sided, of the spread: a pilot that happens to vary little must not promise too much (Browne, Statistics in Medicine 14, 1995).
_SURE = 0.8


def paired_power(effect: float, sd: float, n: int, *, alpha: float = 0.05) -> float:
    """Chance that a two-sided paired t test with ``n`` pairs finds a mean difference ``effect``.

    ``sd`` is the standard deviation of a difference, not of a reward.
    """
    if n < 2:
        return 0.0
    critical = student_quantile(1 - alpha / 2, n - 1)
    shift = abs(effect) / sd * sqrt(n)
    below_upper = noncentral_t_cdf(critical, n - 1, shift)
    below_lower = noncentral_t_cdf(-critical, n - 1, shift)
    return 1 - below_upper + below_lower


def episodes_needed(effect: float, sd: float, *, power: float = _POWER, alpha: float = 0.05) -> int | None:
    """The fewest pairs with which a two-sided paired t test finds ``effect`` with the given power; at least 2.

    None if they are more than 1e15, which nobody can roll out.

    >>> episodes_needed(0.5, 1.0)
    34
    """
    if effect == 0 or not isfinite(effect):
        raise ValueError(
            f"expected a difference other than 0, got {effect}; no number of episodes shows a difference of 0"
        )
    is_share = 0 < alpha < power < 1
    if not isfinite(sd) or sd < 0 or not is_share:
        raise ValueError(f"expected sd >= 0 and 0 < alpha < power < 1, got sd = {sd}, alpha = {alpha}, power = {power}")
    if sd == 0:
        return 2
    z_alpha, z_power = normal_quantile(1 - alpha / 2), normal_quantile(power)
    root = (z_alpha + z_power) * sd / abs(effect)
    if root > sqrt(_MOST):
        return None
    n = max(2, ceil(root**2))
    if n > _LARGE:
        return n + 2  # Student's correction, z_alpha^2 / 2 for alpha = 0.05, rounded up
    return _fewest(n, lambda pairs: paired_power(effect, sd, pairs, alpha=alpha) >= power)


def _fewest(n: int, suffice: Callable[[int], bool]) -> int:
    """The fewest pairs, at least 2, that ``suffice``, searched for from ``n`` on, which is near."""
    while not suffice(n):
        n += 1
    while n > 2 and suffice(n - 1):
        n -= 1
    return n


def units_needed(paired: Paired, effect: float, *, alpha: float = 0.05) -> int | None:
    """The fewest independent units (clusters, or tasks without clusters) that show ``effect`` with a power of 80 %.

    The test is the one that ``paired`` was judged by, and the spread the upper bound of what its units tell, which holds in 80 % of pilots. None
    if the pilot does not tell a spread, or if more than 1e15 units are needed.
    """
    if not paired.error or paired.units < 2:
        return None
    if paired.test == "values":
        z = normal_quantile(_SURE)
        discordant = score_interval(1 - paired.ties / paired.n, paired.n, z).high or 1.0
        return pairs_of_values_needed(effect, discordant, alpha=alpha)
    df = paired.units - 1
    spread = paired.error * sqrt(paired.units * df / chi_square_quantile(1 - _SURE, df))
    needed = episodes_needed(effect, spread, power=_POWER, alpha=alpha)
    return needed and max(needed, LEAST_UNITS)


def power_of_values(effect: float, discordant: float, n: int, *, alpha: float = 0.05) -> float:
    """The chance that the score test over ``n`` pairs of outcomes 0 or 1 finds the difference ``effect`` of two shares.

    ``discordant``: the share of pairs that differ, at least ``effect``. The number of such pairs is binomial, and the test conditions on it.
    """
    size = abs(effect)
    share = max(discordant, size)
    wins = (share + size) / (2 * share)
    counts = np.arange(n + 1, dtype=np.float64)  # of pairs that differ
    cumulated = binomial_cdfs(counts, np.full(n + 1, float(n)), share)
    chances = np.diff(cumulated, prepend=0.0)
    z = normal_quantile(1 - alpha / 2)
    most = np.floor((counts - 1 - z * np.sqrt(counts)) / 2)  # losses with which the test still rejects
    possible = most >= 0
    losses = np.maximum(most, 0)
    rejects = binomial_cdfs(losses, counts, wins) + binomial_cdfs(losses, counts, 1 - wins)
    return float(np.sum(chances[possible] * rejects[possible]))


def pairs_of_values_needed(effect: float, discordant: float, *, alpha: float = 0.05) -> int | None:
    """The fewest pairs of outcomes 0 or 1 whose score test finds ``effect`` with a power of 80 %; None beyond 1e15.

    Beyond 3,000 pairs the normal approximation with its correction for continuity. Source: Connor, Biometrics 43, 1987.
    """
    delta, share = abs(effect), max(discordant, abs(effect))
    z_alpha, z_power = normal_quantile(1 - alpha / 2), normal_quantile(_POWER)
    spread = sqrt(max(0.0, share - delta**2))
    root = (z_alpha * sqrt(share) + z_power * spread) / delta
    if root > sqrt(_MOST):
        return None
    n = max(2, ceil(root**2 + 1 / delta))
    if n > _LARGE:
        return n
    return _fewest(n, lambda pairs: power_of_values(effect, share, pairs, alpha=alpha) >= _POWER)
