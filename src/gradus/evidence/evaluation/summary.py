"""From graded episodes to the figures of the JSON document: one record a policy, one record a pair.

A figure is a number per episode or None: ``reward``, ``true_reward``, the environment's own metrics, and the grader's components.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Any, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, StopReason, Turn
from gradus.core.documents import Mean, PairedMean, check_metrics
from gradus.core.printing import beginning
from gradus.rollouts.grading import ask_environment
from gradus.stats import Paired, holm, mean_interval, paired_difference, pass_at_k, units_needed

LEVEL = 0.95  # of every interval, unless an evaluation looks at its episodes while they come in
_DIGITS = 6
_MOST_ACTIONS = 20  # different ones; beyond, answers are texts and no choice among actions
_LONG = 300  # characters of a failure's message

T = TypeVar("T")
Values = list[float | None]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The numbers of one policy under one condition and one grader. Lists run over the tasks: means of a task's samples."""

    episodes: Sequence[Episode]
    seeds: list[int]
    plain: Mapping[str, Values]
    components: Mapping[str, Values]
    curves: Mapping[str, list[Values]]  # name -> points -> tasks
    clusters: list[str] | None

    @staticmethod
    def of(
        spec: EnvironmentSpec,
        grader: Grader,
        episodes: Sequence[Episode],
        cluster: Callable[[Episode], str] | None,
        pass_k: Sequence[int] = (),
    ) -> Figures:
        """Read them off ``episodes``. An episode that failed has no figures; it is counted, and its seed stays in place.

        ``pass_k``: for each k a figure ``pass@k``.
        """
        names = dict.fromkeys(name for episode in episodes for name in episode.metrics if name != "true_reward")
        check_metrics(spec.name, names)
        plain: dict[str, Values] = {
            "reward": [episode.reward.value if episode.reward else None for episode in episodes],
            "true_reward": [_number(episode.metrics.get("true_reward")) for episode in episodes],
        }
        if any(episode.env_return is not None for episode in episodes):
            plain["env_reward"] = [_number(episode.env_return) for episode in episodes]
        for name in names:
            plain[name] = [_number(episode.metrics.get(name)) for episode in episodes]
        components = {
            name: [_number(episode.reward.components.get(name)) if episode.reward else None for episode in episodes]
            for name in grader.weights
        }
        whole = [None if episode.stop is StopReason.FAILED else episode for episode in episodes]
        curves = _curves(spec, whole)
        samples = _samples(episodes)
        plain |= {f"pass@{k}": _passes(episodes, samples, k) for k in pass_k}

        def by_task(values: Values) -> Values:
            return values if len(values) == len(samples) else [_average(values, places) for places in samples]

        # The hidden unit of a failed episode may be unknown; it has no figures either, so its label is never read.
        kept = [next((each for place in places if (each := whole[place])), None) for places in samples]
        return Figures(
            episodes=episodes,
            seeds=[episodes[places[0]].task.seed for places in samples],
            plain={name: by_task(values) for name, values in plain.items()},
            components={name: by_task(values) for name, values in components.items()},
            curves={name: [by_task(values) for values in points] for name, points in curves.items()},
            clusters=[_cluster(cluster, each) if each else "" for each in kept] if cluster else None,
        )


def require_same_tasks(condition: str, rollouts: Iterable[Sequence[Episode]]) -> None:
    """Raise ConfigError if a seed stands for another task in one of the rollouts: their data differ, and pairs would be of two tasks."""
    asked: dict[int, str] = {}
    for task in (episode.task for episodes in rollouts for episode in episodes if episode.task.id):
        if asked.setdefault(task.seed, task.id) != task.id:
            raise ConfigError(
                f"seed {task.seed} of {condition} stands for several tasks, because the data changed between the rollouts; roll all "
                "policies out on one data set"
            )


def _samples(episodes: Sequence[Episode]) -> list[list[int]]:
    """The places of each task's episodes."""
    places: dict[int, list[int]] = {}
    for place, episode in enumerate(episodes):
        places.setdefault(episode.task.seed, []).append(place)
    return list(places.values())


def _average(values: Values, places: Sequence[int]) -> float | None:
    known = [value for place in places if (value := values[place]) is not None]
    return fsum(known) / len(known) if known else None


def _passes(episodes: Sequence[Episode], samples: Sequence[Sequence[int]], k: int) -> Values:
    """Returns pass@k of each task. An episode passes if its true reward is 1; without true rewards, if its reward is 1."""
    outcomes = [_number(episode.metrics.get("true_reward")) for episode in episodes]
    if all(outcome is None for outcome in outcomes):
        outcomes = [episode.reward.value if episode.reward else None for episode in episodes]
    values: Values = []
    for places in samples:
        known = [value for place in places if (value := outcomes[place]) is not None]
        values.append(pass_at_k(len(known), sum(value >= 1.0 for value in known), k))
    return values


def _curves(spec: EnvironmentSpec, episodes: Sequence[Episode | None]) -> dict[str, list[Values]]:
    """Curves transposed: name -> point -> one value per episode; shorter curves end in None."""
    if spec.presentation.curves is None:
        return {}
    draw = spec.presentation.curves
    each = [_asked(f"curves of {spec.name!r}", draw, episode) or {} if episode else {} for episode in episodes]
    names = dict.fromkeys(name for curves in each for name in curves)
    curves_by_point: dict[str, list[Values]] = {}
    for name in names:
        rows = [list(curves.get(name, ())) for curves in each]
        length = max(len(row) for row in rows)
        curves_by_point[name] = [
            [_number(row[point]) if point < len(row) else None for row in rows] for point in range(length)
        ]
    return curves_by_point


def _cluster(cluster: Callable[[Episode], str], episode: Episode) -> str:
    """The hidden unit of an episode; a unit of its own if it cannot be told."""
    return _asked("cluster of a condition", cluster, episode) or f"task {episode.task.seed}"


def _asked(what: str, give: Callable[[Episode], T], episode: Episode) -> T | None:
    """Calls a function of the environment on an episode. If it raises, returns None and warns, so that the episodes are kept."""
    given, raised = ask_environment(what, give, episode)
    if raised:
        warnings.warn(f"{raised} in an episode", stacklevel=2)
    return given


def policy_record(figures: Figures, level: float = LEVEL) -> dict[str, Any]:
    """Returns the document's record of one policy, with intervals of this level."""

    def mean(values: Values) -> Mean:
        interval = mean_interval(values, clusters=figures.clusters, level=level)
        return {"mean": rounded(interval.mean), "low": rounded(interval.low), "high": rounded(interval.high)}

    record: dict[str, Any] = {name: mean(values) for name, values in figures.plain.items()}
    return record | {
        "components": {name: mean(values) for name, values in figures.components.items()},
        "curves": {name: [mean(values) for values in points] for name, points in figures.curves.items()},
        **counts(figures.episodes),
    }


def counts(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Returns how many episodes there are, what went missing, and what they cost."""
    failures = Counter(f"{e.failure.stage}: {e.failure.type}" for e in episodes if e.failure)
    ungraded = [e for e in episodes if e.stop is not StopReason.FAILED and (e.reward is None or e.reward.value is None)]
    cut = [e for e in episodes if e.stop not in (StopReason.TERMINATED, StopReason.FAILED)]
    turns = [turn for episode in episodes for turn in episode.turns]
    invalid = sum(not turn.valid for turn in turns) / len(turns) if turns else None
    record: dict[str, Any] = {
        "episodes": len(episodes),
        "failed": sum(e.stop is StopReason.FAILED for e in episodes),
        "failures": dict(sorted(failures.items())),
        "ungraded": len(ungraded),
        "truncated": len(cut),
        "invalid_actions": rounded(invalid),
    }
    if first := first_failure(episodes):
        record["first_failure"] = first
    actions = Counter(name for turn in turns for name in _actions(turn))
    if 0 < len(actions) <= _MOST_ACTIONS:
        record["actions"] = dict(sorted(actions.items(), key=lambda each: (-each[1], each[0])))
    usage = [turn.usage for turn in turns if turn.usage is not None]
    if usage:
        costs = [each.cost for each in usage]
        known = [cost for cost in costs if cost is not None]
        record["usage"] = {
            "prompt_tokens": sum(each.prompt_tokens for each in usage),
            "completion_tokens": sum(each.completion_tokens for each in usage),
            "cost": rounded(sum(known)) if known and len(known) == len(costs) else None,
        }
    return record


def first_failure(episodes: Sequence[Episode]) -> str:
    """Returns the first failure's message, or else the first grading error; an empty text if every episode went well."""
    told = [f"{e.failure.stage}: {e.failure.type}: {e.failure.message}" for e in episodes if e.failure]
    told += [e.reward.error for e in episodes if e.reward is not None and e.reward.error]
    return beginning(" ".join(told[0].split()), _LONG) if told else ""


def _actions(turn: Turn) -> list[str]:
    """Returns the actions of a valid turn: names of called tools, the span named action, or the answer as it is."""
    if not turn.valid:
        return []
    if turn.calls:
        return [call.name for call in turn.calls]
    span = next((each for each in turn.spans if each.name == "action"), None)
    return [turn.action[span.start : span.end] if span else turn.action.strip()]


def paired_figures(a: Figures, b: Figures, level: float = LEVEL) -> Callable[[Values | None, Values | None], Paired]:
    """Returns what compares two lists of figures, a's minus b's, over the seeds where both have them."""
    place = {seed: index for index, seed in enumerate(b.seeds)}
    shared = [(i, place[seed]) for i, seed in enumerate(a.seeds) if seed in place]
    clusters = [a.clusters[i] or (b.clusters[j] if b.clusters else "") for i, j in shared] if a.clusters else None

    def difference(left: Values | None, right: Values | None) -> Paired:
        x = [left[i] if left else None for i, _ in shared]
        y = [right[j] if right else None for _, j in shared]
        return paired_difference(x, y, clusters, level=level)

    return difference


def pair_record(a: Figures, b: Figures, power: float | None, tests: int = 1, *, level: float = LEVEL) -> dict[str, Any]:
    """Returns the document's record of a - b, over the seeds where both have the figure.

    ``power``: the difference for which it says how many episodes are needed, if ``tests`` comparisons are corrected together.
    ``level``: of the intervals.
    """
    difference = paired_figures(a, b, level)
    record: dict[str, Any] = {}
    for name in dict.fromkeys([*a.plain, *b.plain]):
        paired = difference(a.plain.get(name), b.plain.get(name))
        record[name] = stored_pair(paired, level)
        if name == "reward" and power is not None:
            # Holm's correction asks the smallest p of ``tests`` for alpha / tests; the others are asked for less.
            needed = units_needed(paired, power, alpha=0.05 / tests)
            each = max(
                1, round(len(a.episodes) / max(1, paired.units))
            )  # episodes of a unit: of a cluster, or samples of a task
            record[name]["episodes_needed"] = None if needed is None else each * needed
            if a.clusters is not None:
                record[name]["clusters_needed"] = needed
    record["components"] = {
        name: stored_pair(difference(a.components.get(name), b.components.get(name)), level)
        for name in dict.fromkeys([*a.components, *b.components])
    }
    return record


def holm_adjusted(conditions: Mapping[str, dict[str, Any]], *, over_pairs: bool = False) -> None:
    """Add ``p_holm`` to every pair's figures: the same comparison under several conditions is several tests."""
    families: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for condition in conditions.values():
        for pair, record in condition["pairs"].items():
            family = () if over_pairs else (pair,)
            for name, figure in record.items():
                if name == "components":
                    for component, inner in figure.items():
                        families.setdefault((*family, name, component), []).append(inner)
                else:
                    families.setdefault((*family, name), []).append(figure)
    for family in families.values():
        for figure, adjusted in zip(family, holm([figure["p"] for figure in family]), strict=True):
            figure["p_holm"] = rounded(adjusted)


def stored_pair(paired: Paired, level: float = LEVEL) -> PairedMean:
    """A paired difference as the document has it. At a higher ``level`` p is as much larger as the errors that are allowed are rarer."""
    p = None if paired.p is None else min(1.0, paired.p * (1 - LEVEL) / (1 - level))
    return {
        "mean": rounded(paired.mean),
        "low": rounded(paired.low),
        "high": rounded(paired.high),
        "wins": paired.wins,
        "ties": paired.ties,
        "win_low": rounded(paired.win_low),
        "win_high": rounded(paired.win_high),
        "episodes": paired.n,
        "p": rounded(p),
    }


def _number(value: float | None) -> float | None:
    """A figure as a finite float; anything else is missing."""
    return float(value) if value is not None and isfinite(value) else None


def rounded(value: float | None) -> float | None:
    """Six decimals: far below any interval, and above what a different order of summation can change."""
    return None if value is None else round(float(value), _DIGITS) + 0.0
