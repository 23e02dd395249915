"""Reading `results.json`: which figures it has, and in which order they are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gradus.core.documents import (
    ByCondition,
    ConditionResults,
    Mean,
    PairedMean,
    Results,
    differences_of,
    means_of,
)
from gradus.core.frozen_record import frozen_record
from gradus.core.values import JsonDict
from gradus.stats import Decision

_FIRST = ("reward", "true_reward", "pass@", "play")  # beginnings of names, shown first in this order
BEFORE = ("distill", "sft", "base")  # students that GRPO may begin with, the latest first
_SIDES = " - "  # between the two policies of a pair


_OPPOSITE: Mapping[str, Decision] = {"better": "worse", "worse": "better"}


@frozen_record
class Figure:
    """A mean with its interval; bounds are None if they are undefined."""

    mean: float
    low: float | None = None
    high: float | None = None
    missing: int = 0  # tasks without the figure
    # Of a paired difference: what it proves, its independent units, and those off the commonest difference.
    decision: Decision = "undecided"
    units: int = 0
    differing: int = 0

    def reversed(self) -> Figure:
        """The figure of the opposite difference."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        decision = _OPPOSITE.get(self.decision, self.decision)
        return replace(self, mean=-self.mean, low=low, high=high, decision=decision)


Figures = Mapping[str, Figure]  # by measure; what is undefined is left out


@frozen_record
class Difference:
    """``first`` minus ``second`` on the same seeds."""

    first: str
    second: str
    figures: Figures
    reward: PairedMean | None = None  # as it was stored, with wins and sizes

    def reversed(self) -> Difference:
        """``second`` minus ``first``, without the wins, which were counted the other way round."""
        figures = {measure: value.reversed() for measure, value in self.figures.items()}
        return Difference(first=self.second, second=self.first, figures=figures)


@frozen_record
class ConditionScores:
    """One condition as one grader sees it: the figures of each policy, and the pairs as they were stored."""

    condition: str
    grader: str
    stored: ConditionResults
    policies: Mapping[str, Figures]
    pairs: Sequence[Difference]

    @property
    def graded_pairs(self) -> list[Difference]:
        """The pairs with a difference in reward."""
        return [pair for pair in self.pairs if "reward" in pair.figures]

    def ranked(self, measure: str = "reward") -> list[str]:
        """Policies from lowest to highest; those without the figure come first."""

        def height(policy: str) -> float:
            value = self.policies[policy].get(measure)
            return value.mean if value else float("-inf")

        return sorted(self.policies, key=height)

    def against(self, subject: str) -> dict[str, Difference]:
        """Other policy -> ``subject`` minus it, whichever way round the pair was stored; only pairs with a difference in reward."""
        against: dict[str, Difference] = {}
        for pair in self.graded_pairs:
            if pair.first == subject:
                against[pair.second] = pair
            elif pair.second == subject:
                against.setdefault(pair.first, pair.reversed())
        return against

    def change(self, subject: str, other: str) -> Figure | None:
        """``subject``'s reward minus another policy's: paired if that was stored, else of the means alone."""
        pair = self.against(subject).get(other)
        if pair is not None:
            return pair.figures["reward"]
        first = self.policies.get(subject, {}).get("reward")
        second = self.policies.get(other, {}).get("reward")
        return Figure(mean=first.mean - second.mean) if first and second else None


def scores_of(results: Results) -> dict[str, dict[str, ConditionScores]]:
    """Returns the scores by grader and condition, the main grader first."""
    graders = {results["grader"]: results["conditions"]}
    for name, graded in results.get("graders", {}).items():
        graders.setdefault(name, graded["conditions"])
    return {grader: _by_condition(grader, conditions) for grader, conditions in graders.items()}


def main_scores(results: Results) -> dict[str, ConditionScores]:
    """Returns the scores of the main grader by condition."""
    return _by_condition(results["grader"], results["conditions"])


def _by_condition(grader: str, conditions: ByCondition) -> dict[str, ConditionScores]:
    scores: dict[str, ConditionScores] = {}
    for condition, stored in conditions.items():
        policies = {name: figures_in(means_of(policy)) for name, policy in stored["policies"].items()}
        scores[condition] = ConditionScores(
            condition=condition,
            grader=grader,
            stored=stored,
            policies=policies,
            pairs=differences(conditions, condition),
        )
    return scores


def figure(value: Mean | None) -> Figure | None:
    """Returns a stored mean as a figure; None if there is none, or if it is undefined."""
    stored: JsonDict = dict(value or {})
    if stored.get("mean") is None:
        return None
    # Of a difference its test is stored too.
    return Figure(**{name: stored[name] for name in Figure.__dataclass_fields__ if name in stored})


def figures_in(means: Mapping[str, Mean]) -> dict[str, Figure]:
    """Returns the stored means that are defined, as figures."""
    figures = {name: figure(value) for name, value in means.items()}
    return {name: value for name, value in figures.items() if value}


def main_condition(results: Results) -> str | None:
    """The first condition is the main one."""
    return next(iter(results["conditions"]), None)


def headline_condition(results: Results) -> str | None:
    """The condition that a headline speaks of: held-out data if there are some, else the main condition."""
    return next(filter(is_held_out, results["conditions"]), main_condition(results))


def is_held_out(condition: str) -> bool:
    """True for a condition whose name says that its tasks are held out."""
    return "held-out" in condition or "unseen" in condition


def measures_of(conditions: Mapping[str, ConditionScores]) -> list[str]:
    """Names of the figures that any policy has under any condition, components left out."""
    figures = [figures for scores in conditions.values() for figures in scores.policies.values()]
    names = _names(figures)
    names.pop("env_reward", None)  # it is for machines alone
    return sorted(names, key=_place)


def _place(measure: str) -> int:
    stem = "pass@" if measure.startswith("pass@") else measure
    return _FIRST.index(stem) if stem in _FIRST else len(_FIRST)


def components_of(conditions: ByCondition) -> list[str]:
    """Names of the components of the reward."""
    policies = [policy for condition in conditions.values() for policy in condition["policies"].values()]
    return list(_names(policy["components"] for policy in policies))


def _names(tables: Iterable[Mapping[str, object]]) -> dict[str, None]:
    """The keys of all tables in order."""
    return dict.fromkeys(name for table in tables for name in table)


def sides_of(pair: str, policies: Collection[str]) -> tuple[str, str]:
    """The two policies of a stored pair, whose own names may hold what stands between them, as a path does.

    >>> sides_of("runs/a - b - gold", ["runs/a - b", "gold"])
    ('runs/a - b', 'gold')
    """
    parts = pair.split(_SIDES)
    for place in range(1, len(parts)):
        first = _SIDES.join(parts[:place])
        second = _SIDES.join(parts[place:])
        if first in policies and second in policies:
            return first, second
    return parts[0], _SIDES.join(parts[1:])


def differences(conditions: ByCondition, condition: str) -> list[Difference]:
    """All stored pairs of a condition, as they were stored."""
    pairs: list[Difference] = []
    for name, pair in conditions[condition]["pairs"].items():
        first, second = sides_of(name, conditions[condition]["policies"])
        stored = differences_of(pair)
        pairs.append(Difference(first=first, second=second, figures=figures_in(stored), reward=stored.get("reward")))
    return pairs
