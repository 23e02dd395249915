"""Curves over an episode and the points of an audit, for the page and for figures alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradus.evidence.reports.results import figure, main_condition
from gradus.evidence.reports.score_tables import is_own

Json = dict[str, Any]
LONGEST_NAME = 28
MOST_LINES = 6  # a chart with more lines cannot be read


def outcome_curves(results: Mapping[str, Any] | None, condition: str | None = None) -> list[Json]:
    """Curves over an episode (for Rhythm: belief error by day) one line a policy; the main condition if none is named.

    A curve whose name ends in another's (``constant_belief_mae_by_day``) is what that one is held against: it becomes a line in
    its chart, called by the rest of its name.
    """
    condition = condition or (main_condition(results) if results else None)
    if results is None or condition not in (results.get("conditions") or {}):
        return []
    lines: dict[str, list[Json]] = {}
    for policy, stored in (results["conditions"][condition].get("policies") or {}).items():
        for name, points in (stored.get("curves") or {}).items():
            y = [value.mean if (value := figure(point)) else None for point in points]
            if any(value is not None for value in y):
                lines.setdefault(name, []).append({"name": policy, "x": list(range(1, len(y) + 1)), "y": y})
    charts: list[Json] = []
    for name, series in lines.items():
        if _home(name, lines):
            continue
        series = _fewest(series)
        against = [other for other in lines if _home(other, lines) == name]
        series += [{**lines[other][0], "name": _spaced(other.removesuffix(name))} for other in against]
        along = name.rpartition("_by_")[2] if "_by_" in name else "point"
        charts.append({"title": _spaced(name), "note": "mean over the episodes", "x": _spaced(along), "series": series})
    return charts


def _home(name: str, names: Iterable[str]) -> str | None:
    return next((other for other in names if name != other and name.endswith(f"_{other}")), None)


def _spaced(name: str) -> str:
    return name.replace("_", " ").strip()


def _fewest(series: Sequence[Json]) -> list[Json]:
    """At most as many lines as can be told apart: equal ones once, then the run's own first."""
    seen: dict[tuple[float | None, ...], Json] = {}
    for line in series:
        seen.setdefault(tuple(line["y"]), line)
    kept = sorted(seen.values(), key=lambda line: not is_own(line["name"]))
    return kept[:MOST_LINES]


def audit_points(audit: Mapping[str, Any] | None) -> list[Json]:
    """Reward (x) and true reward (y) of each policy of an audit; ``strong`` marks exploits and the plans of the search."""
    points: list[Json] = []
    for stored in (audit or {}).get("points") or ():
        reward, true_reward = figure(stored.get("reward")), figure(stored.get("true_reward"))
        if reward and true_reward:
            strong = stored.get("role") in ("exploit", "search")
            name = str(stored.get("policy"))
            short = name.partition(": ")[0] if len(name) > LONGEST_NAME else name  # the plan of a search is a paragraph
            points.append({"name": short, "x": reward.mean, "y": true_reward.mean, "strong": strong})
    return points
