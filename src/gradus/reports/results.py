"""Reading `results.json`: which figures are there, in which order they are shown, and how a number is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Difference",
    "Figure",
    "components_of",
    "differences",
    "figure",
    "graders_of",
    "main_condition",
    "measures_of",
    "ranked",
]

Json = Mapping[str, Any]
FIRST = ("reward", "true_reward", "play")  # shown first, in this order; the environment's own metrics follow
NOT_MEASURES = ("components", "curves", "failures", "usage")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean with its interval; bounds are None where they are undefined."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def reversed(self) -> Figure:
        """The figure of the opposite difference."""
        low, high = (None if bound is None else -bound for bound in (self.high, self.low))
        return Figure(mean=-self.mean, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """``first`` minus ``second`` on the same seeds: a figure per measure, and the reward's wins and size."""

    first: str
    second: str
    figures: Mapping[str, Figure | None]
    wins: int | None = None
    episodes: int | None = None
    p: float | None = None  # of the reward, Holm-adjusted over conditions where that was stored

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
        return Figure(mean=float(mean), low=_number(value.get("low")), high=_number(value.get("high")))
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


def measures_of(conditions: Json) -> list[str]:
    """Names of the figures that any policy has under any condition, components left out."""
    seen: dict[str, None] = {}
    for condition in conditions.values():
        for policy in (condition.get("policies") or {}).values():
            for name, value in policy.items():
                if name not in NOT_MEASURES and isinstance(value, Mapping) and figure(value) is not None:
                    seen[name] = None
    return [name for name in FIRST if name in seen] + [name for name in seen if name not in FIRST]


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


def differences(conditions: Json, condition: str) -> list[Difference]:
    """All stored pairs of a condition, as they were stored."""
    pairs_found: list[Difference] = []
    for name, pair in ((conditions.get(condition) or {}).get("pairs") or {}).items():
        first, separator, second = name.partition(" - ")
        if not separator or not isinstance(pair, Mapping):
            continue
        reward = pair.get("reward")
        reward = reward if isinstance(reward, Mapping) else {}
        figures = {measure: figure(value) for measure, value in pair.items() if measure != "components"}
        p = reward.get("p_holm", reward.get("p"))
        pairs_found.append(
            Difference(
                first=first,
                second=second,
                figures=figures,
                wins=reward.get("wins"),
                episodes=reward.get("episodes"),
                p=p,
            )
        )
    return pairs_found
