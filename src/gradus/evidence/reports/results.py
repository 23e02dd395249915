"""Reading `results.json`: which figures are there, in which order they are shown, and how a number is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

Json = Mapping[str, Any]
FIRST = (
    "reward",
    "true_reward",
    "pass@",
    "play",
)  # beginnings of names, shown first in this order; other metrics follow
ALPHA = 0.05
BEFORE = ("distill", "sft", "base")  # students that GRPO may begin with, the latest first
FEWEST = 6  # pairs: with five, even five wins of five have p = 0.06 in a sign test
NOT_MEASURES = (
    "actions",
    "components",
    "curves",
    "env_reward",
    "failures",
    "usage",
)  # env_reward is for machines alone


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean with its interval; bounds are None if they are undefined. ``p`` and ``n`` are those of a paired difference."""

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    n: int | None = None

    @property
    def certain(self) -> bool:
        """Says if a difference may be claimed: the interval leaves out 0, p is below 0.05, and there are enough pairs."""
        if self.low is None or self.high is None or (self.p is not None and self.p >= ALPHA):
            return False
        return (self.n is None or self.n >= FEWEST) and (self.low > 0 or self.high < 0)

    def reversed(self) -> Figure:
        """The figure of the opposite difference."""
        low, high = (None if bound is None else -bound for bound in (self.high, self.low))
        return replace(self, mean=-self.mean, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """``first`` minus ``second`` on the same seeds: a figure per measure, and the reward's wins and size."""

    first: str
    second: str
    figures: Mapping[str, Figure | None]
    wins: int | None = None
    episodes: int | None = None
    p: float | None = None  # of the reward, Holm-adjusted over conditions if that was stored
    win_rate: tuple[float, float] | None = None
    episodes_needed: int | None = None
    clusters_needed: int | None = None

    def reversed(self) -> Difference:
        """``second`` minus ``first``; wins are unknown, because ties are not kept apart here."""
        turned = {name: None if value is None else value.reversed() for name, value in self.figures.items()}
        return Difference(first=self.second, second=self.first, figures=turned, episodes=self.episodes, p=self.p)


def figure(value: object) -> Figure | None:
    """A stored figure: ``{"mean", "low", "high"}``, a bare number, or None."""
    if isinstance(value, Mapping):
        mean = value.get("mean")
        if not isinstance(mean, int | float):
            return None
        p, n = _number(value.get("p_holm", value.get("p"))), _number(value.get("episodes"))
        low, high = _number(value.get("low")), _number(value.get("high"))
        return Figure(mean=float(mean), low=low, high=high, p=p, n=None if n is None else int(n))
    number = _number(value)
    return None if number is None else Figure(mean=number)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def graders_of(results: Json) -> dict[str, Json]:
    """Grader name -> conditions, the main grader first."""
    graded_by: dict[str, Json] = {str(results.get("grader", "reward")): results.get("conditions") or {}}
    for name, graded in (results.get("graders") or {}).items():
        if name not in graded_by and isinstance(graded, Mapping):
            graded_by[name] = graded.get("conditions") or {}
    return graded_by


def main_condition(results: Json) -> str | None:
    """The first condition is the main one."""
    return next(iter(results.get("conditions") or {}), None)


def headline_condition(results: Json) -> str | None:
    """The condition that a headline speaks of: held-out data if there are some, else the main condition."""
    return next(filter(is_held_out, results.get("conditions") or {}), main_condition(results))


def is_held_out(condition: str) -> bool:
    """True for a condition whose name says that its tasks are held out."""
    return "held-out" in condition or "unseen" in condition


def measures_of(conditions: Json) -> list[str]:
    """Names of the figures that any policy has under any condition, components left out."""
    seen: dict[str, None] = {}
    for condition in conditions.values():
        for policy in (condition.get("policies") or {}).values():
            for name, value in policy.items():
                if name not in NOT_MEASURES and isinstance(value, Mapping) and figure(value) is not None:
                    seen[name] = None
    first = [name for start in FIRST for name in seen if name == start or (start == "pass@" and name.startswith(start))]
    return first + [name for name in seen if name not in first]


def components_of(conditions: Json) -> list[str]:
    """Names of the components of the reward."""
    seen: dict[str, None] = {}
    for condition in conditions.values():
        for policy in (condition.get("policies") or {}).values():
            seen.update(dict.fromkeys(policy.get("components") or {}))
    return list(seen)


def ranked(conditions: Json, condition: str, measure: str = "reward") -> list[str]:
    """Policies of a condition from lowest to highest; those without a figure come first."""
    policies = (conditions.get(condition) or {}).get("policies") or {}
    values = {name: figure(policy.get(measure)) for name, policy in policies.items()}
    order = {name: place for place, name in enumerate(policies)}
    return sorted(policies, key=lambda name: (value.mean if (value := values[name]) else float("-inf"), order[name]))


def sides_of(pair: str, policies: Collection[str]) -> tuple[str, str] | None:
    """The two policies of a stored pair, whose own names may hold what stands between them, as a path does; None if the text names one policy.

    >>> sides_of("runs/a - b - gold", ["runs/a - b", "gold"])
    ('runs/a - b', 'gold')
    """
    parts = pair.split(" - ")
    cuts = [(" - ".join(parts[:place]), " - ".join(parts[place:])) for place in range(1, len(parts))]
    return next((cut for cut in cuts if cut[0] in policies and cut[1] in policies), cuts[0] if cuts else None)


def differences(conditions: Json, condition: str) -> list[Difference]:
    """All stored pairs of a condition, as they were stored."""
    pairs: list[Difference] = []
    stored = conditions.get(condition) or {}
    for name, pair in (stored.get("pairs") or {}).items():
        sides = sides_of(name, stored.get("policies") or {})
        if sides is None or not isinstance(pair, Mapping):
            continue
        first, second = sides
        reward = pair.get("reward")
        reward = reward if isinstance(reward, Mapping) else {}
        figures = {measure: figure(value) for measure, value in pair.items() if measure != "components"}
        p = reward.get("p_holm", reward.get("p"))
        low, high = reward.get("win_low"), reward.get("win_high")
        pairs.append(
            Difference(
                first=first,
                second=second,
                figures=figures,
                wins=reward.get("wins"),
                episodes=reward.get("episodes"),
                p=p,
                win_rate=None if low is None or high is None else (low, high),
                episodes_needed=reward.get("episodes_needed"),
                clusters_needed=reward.get("clusters_needed"),
            )
        )
    return pairs
