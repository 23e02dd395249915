"""How many paired episodes a difference needs."""

from __future__ import annotations

from math import ceil, isfinite, sqrt

from gradus.stats.distributions import noncentral_t_cdf, normal_quantile, student_quantile

_MOST = 1e15  # the square of what is larger may be beyond a float
_LARGE = 3000  # beyond, t and normal agree to far below one episode in a thousand


def paired_power(effect: float, sd: float, n: int, *, alpha: float = 0.05) -> float:
    """Chance that a two-sided paired t test with ``n`` pairs finds a mean difference ``effect``.

    ``sd`` is the standard deviation of a difference, not of a reward.
    """
    if n < 2:
        return 0.0
    critical = student_quantile(1 - alpha / 2, n - 1)
    shift = abs(effect) / sd * sqrt(n)
    upper = noncentral_t_cdf(critical, n - 1, shift)
    return 1 - upper + noncentral_t_cdf(-critical, n - 1, shift)


def episodes_needed(effect: float, sd: float, *, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest pairs with which a two-sided paired t test finds ``effect`` with the given power; at least 2.

    None if they are more than 1e15, which nobody can roll out.

    >>> episodes_needed(0.5, 1.0)
    34
    """
    if not (isfinite(effect) and effect != 0):
        raise ValueError(
            f"expected a difference other than 0, got {effect}; no number of episodes shows a difference of 0"
        )
    if not (isfinite(sd) and sd >= 0 and 0 < alpha < power < 1):
        raise ValueError(f"expected sd >= 0 and 0 < alpha < power < 1, got sd = {sd}, alpha = {alpha}, power = {power}")
    if sd == 0:
        return 2
    z = float(normal_quantile(1 - alpha / 2)) + float(normal_quantile(power))
    root = z * sd / abs(effect)
    if root > sqrt(_MOST):
        return None
    n = max(2, ceil(root**2))
    if n > _LARGE:
        return n + 2  # Student's correction, z_alpha^2 / 2 for alpha = 0.05, rounded up
    while paired_power(effect, sd, n, alpha=alpha) < power:
        n += 1
    while n > 2 and paired_power(effect, sd, n - 1, alpha=alpha) >= power:
        n -= 1
    return n
