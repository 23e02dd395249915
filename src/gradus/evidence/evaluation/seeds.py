"""Policies that were trained from several seeds, compared over seeds and tasks at once (gradus.stats.crossed)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Grader
from gradus.core.documents import Mean, PairedMean, Results
from gradus.evidence.evaluation.evaluate import Pair, chosen_graders, chosen_pairs, results_document
from gradus.evidence.evaluation.summary import (
    Figures,
    Values,
    counts,
    holm_adjusted,
    pair_record,
    policy_record,
    require_same_tasks,
    rounded,
    stored_pair,
)
from gradus.rollouts import grade_episodes
from gradus.stats import crossed_difference, crossed_interval

BySeed = Mapping[str, Mapping[str, Mapping[int, Sequence[Episode]]]]  # condition -> policy -> training seed -> episodes
_SeedFigures = Mapping[int, Figures]


def compare_seeds(
    spec: EnvironmentSpec,
    rollouts: BySeed,
    *,
    seeds: Sequence[int],
    graders: Sequence[str] | None = None,
    pairs: Sequence[Pair] | None = None,
    checkpoint: str | None = None,
    correct_pairs: bool = False,
    pass_k: Sequence[int] = (),
) -> Results:
    """The document of :func:`gradus.evidence.evaluation.compare` for policies with several training seeds; nothing is rolled out.

    A policy with one seed's episodes is one that no training seed changes. Two policies are paired over seeds if they have the same
    ones. Figures carry ``by_seed``, the mean of each seed. The episodes carry the first grader's rewards.
    """
    names = list(dict.fromkeys(name for policies in rollouts.values() for name in policies))
    compared = chosen_pairs(names, pairs)
    by_grader: dict[str, dict[str, Any]] = {}
    for index, grader in enumerate(chosen_graders(spec, graders)):
        records = {
            condition: _condition(spec, grader, condition, policies, compared, pass_k, again=index > 0)
            for condition, policies in rollouts.items()
        }
        holm_adjusted(records, over_pairs=correct_pairs)
        by_grader[grader.name] = records
    return results_document(spec, by_grader, checkpoint, seeds)


def _condition(
    spec: EnvironmentSpec,
    grader: Grader,
    condition: str,
    policies: Mapping[str, Mapping[int, Sequence[Episode]]],
    pairs: Sequence[Pair],
    pass_k: Sequence[int],
    *,
    again: bool,
) -> dict[str, Any]:
    """A condition's record under one grader; ``again``: it has to grade the episodes first."""
    declared = spec.conditions.get(condition)
    cluster = declared.cluster if declared else None
    require_same_tasks(condition, (episodes for of_seeds in policies.values() for episodes in of_seeds.values()))
    figures = {
        name: {
            seed: Figures.of(
                spec, grader, grade_episodes(spec, episodes, grader) if again else episodes, cluster, pass_k
            )
            for seed, episodes in of_seeds.items()
        }
        for name, of_seeds in policies.items()
    }
    return {
        "episodes": max((len(each.episodes) for of_seeds in figures.values() for each in of_seeds.values()), default=0),
        "summary": declared.summary if declared else "",
        "clustered": cluster is not None,
        "policies": {name: _policy_record(each) for name, each in figures.items()},
        "pairs": {
            f"{a} - {b}": _pair_record(figures[a], figures[b]) for a, b in pairs if a in figures and b in figures
        },
    }


def _policy_record(figures: _SeedFigures) -> dict[str, Any]:
    several = list(figures.values())
    if len(several) == 1:
        return policy_record(several[0])
    tasks, clusters = _shared(several)

    def mean(values: Sequence[Values | None]) -> Mean:
        table = [_row(each, row, tasks) for each, row in zip(several, values, strict=True)]
        interval = crossed_interval(table, clusters=clusters)
        return {"mean": rounded(interval.mean), "low": rounded(interval.low), "high": rounded(interval.high)}

    record: dict[str, Any] = {}
    for name in _names([each.plain for each in several]):
        values = [each.plain.get(name, []) for each in several]
        record[name] = {**mean(values), "by_seed": [_average(each) for each in values]}
    record["components"] = {
        name: mean([each.components.get(name) for each in several])
        for name in _names([each.components for each in several])
    }
    record["curves"] = {
        name: [
            mean([_point(each, name, place) for each in several])
            for place in range(max(len(each.curves.get(name, ())) for each in several))
        ]
        for name in _names([each.curves for each in several])
    }
    return record | counts([episode for each in several for episode in each.episodes])


def _pair_record(a: _SeedFigures, b: _SeedFigures) -> dict[str, Any]:
    left, right = list(a.values()), list(b.values())
    if len(left) == len(right) == 1:
        return pair_record(left[0], right[0], None)
    matched = list(a) == list(b)
    tasks, clusters = _shared([*left, *right])

    def difference(one: Sequence[Values | None], other: Sequence[Values | None]) -> PairedMean:
        x = [_row(each, row, tasks) for each, row in zip(left, one, strict=True)]
        y = [_row(each, row, tasks) for each, row in zip(right, other, strict=True)]
        stored = stored_pair(crossed_difference(x, y, matched=matched, clusters=clusters))
        if matched:
            stored["by_seed"] = [_average(_minus(here, there)) for here, there in zip(x, y, strict=True)]
        return stored

    record: dict[str, Any] = {
        name: difference([each.plain.get(name) for each in left], [each.plain.get(name) for each in right])
        for name in _names([each.plain for each in (*left, *right)])
    }
    record["components"] = {
        name: difference([each.components.get(name) for each in left], [each.components.get(name) for each in right])
        for name in _names([each.components for each in (*left, *right)])
    }
    return record


def _shared(figures: Sequence[Figures]) -> tuple[list[int], list[str] | None]:
    """The tasks that all have, by their seeds, and the hidden unit of each if there are such."""
    sets = [set(each.seeds) for each in figures]
    tasks = [task for task in figures[0].seeds if all(task in each for each in sets)]
    if figures[0].clusters is None:
        return tasks, None
    units = [dict(zip(each.seeds, each.clusters or [], strict=True)) for each in figures]
    return tasks, [next((unit[task] for unit in units if unit.get(task)), "") for task in tasks]


def _row(figures: Figures, values: Values | None, tasks: Sequence[int]) -> Values:
    known = dict(zip(figures.seeds, values, strict=True)) if values else {}
    return [known.get(task) for task in tasks]


def _point(figures: Figures, name: str, place: int) -> Values | None:
    points = figures.curves.get(name, ())
    return points[place] if place < len(points) else None


def _average(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(fsum(known) / len(known)) if known else None


def _minus(a: Values, b: Values) -> Values:
    return [None if x is None or y is None else x - y for x, y in zip(a, b, strict=True)]


def _names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in tables for name in each))
