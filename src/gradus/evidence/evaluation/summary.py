"""From graded episodes to figures: a number or None per task for the reward, the environment's metrics, the components and the curves."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import NotRequired, TypedDict, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, StopReason, Turn
from gradus.core.documents import TokenCosts, check_metrics
from gradus.core.printing import beginning
from gradus.rollouts.grading import ask_environment
from gradus.stats import pass_at_k

_DIGITS = 6
_MOST_ACTIONS = 20  # different ones; beyond, answers are texts and no choice among actions
_LONG = 300  # characters of a failure's message

T = TypeVar("T")
Values = list[float | None]
Cluster = Callable[[Episode], str]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The numbers of one policy under one condition and one grader. Lists run over the tasks: means of a task's samples."""

    episodes: Sequence[Episode]
    tasks: Sequence[int]  # their seeds
    measures: Mapping[str, Values]
    components: Mapping[str, Values]
    curves: Mapping[str, Sequence[Values]]  # name -> points -> tasks
    clusters: Sequence[str] | None


def figures_of(
    spec: EnvironmentSpec,
    grader: Grader,
    episodes: Sequence[Episode],
    cluster: Cluster | None,
    pass_k: Sequence[int] = (),
) -> Figures:
    """Read the figures off ``episodes``. An episode that failed has none; it is counted, and its seed stays in place.

    ``pass_k``: for each k a figure ``pass@k``.
    """
    samples = _samples(episodes)
    by_task = _average_by_task(samples)
    measures = {name: by_task(values) for name, values in _measures(spec, episodes).items()}
    for k in pass_k:
        measures[f"pass@{k}"] = _passes(episodes, samples, k)
    components = {name: by_task(_components(episodes, name)) for name in grader.weights}
    curves: dict[str, list[Values]] = {}
    for name, points in _curves(spec, episodes).items():
        curves[name] = [by_task(values) for values in points]
    return Figures(
        episodes=episodes,
        tasks=[episodes[places[0]].task.seed for places in samples],
        measures=measures,
        components=components,
        curves=curves,
        clusters=[_cluster(cluster, episodes, places) for places in samples] if cluster else None,
    )


def require_same_tasks(condition: str, rollouts: Iterable[Sequence[Episode]]) -> None:
    """Raise ConfigError if a seed stands for another task in one of the rollouts: their data differ, and pairs would be of two tasks."""
    ids: dict[int, str] = {}
    for episodes in rollouts:
        for task in (episode.task for episode in episodes if episode.task.id):
            if ids.setdefault(task.seed, task.id) != task.id:
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


def _average_by_task(samples: Sequence[Sequence[int]]) -> Callable[[Values], Values]:
    """Returns what makes one value a task of one value an episode; a single sample stays as it is."""

    def average(values: Values) -> Values:
        if len(values) == len(samples):
            return values
        averages: Values = []
        for places in samples:
            averages.append(mean([values[place] for place in places]))
        return averages

    return average


def mean(values: Values) -> float | None:
    """The mean of the values that are not missing."""
    numbers = [value for value in values if value is not None]
    return fsum(numbers) / len(numbers) if numbers else None


def _measures(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> dict[str, Values]:
    """The figures of whole episodes: reward, true reward, the environment's own rewards if there are any, and its metrics."""
    names = dict.fromkeys(name for episode in episodes for name in episode.metrics)
    check_metrics(spec.name, names.keys() - {"true_reward"})
    measures = {"reward": [_reward(episode) for episode in episodes], "true_reward": _metric(episodes, "true_reward")}
    returns = [_number(episode.env_return) for episode in episodes]
    if any(episode.env_return is not None for episode in episodes):
        measures["env_reward"] = returns
    for name in names:
        measures[name] = _metric(episodes, name)
    return measures


def _metric(episodes: Sequence[Episode], name: str) -> Values:
    return [_number(episode.metrics.get(name)) for episode in episodes]


def _reward(episode: Episode) -> float | None:
    return episode.reward.value if episode.reward else None


def _components(episodes: Sequence[Episode], name: str) -> Values:
    rewards = [episode.reward for episode in episodes]
    return [_number(reward.components.get(name)) if reward else None for reward in rewards]


def _passes(episodes: Sequence[Episode], samples: Sequence[Sequence[int]], k: int) -> Values:
    """Returns pass@k of each task. An episode passes if its true reward is 1; without true rewards, if its reward is 1."""
    outcomes = _metric(episodes, "true_reward")
    if all(outcome is None for outcome in outcomes):
        outcomes = [_reward(episode) for episode in episodes]
    passes: Values = []
    for places in samples:
        rewards = [outcomes[place] for place in places]
        graded = [reward for reward in rewards if reward is not None]
        passes.append(pass_at_k(len(graded), sum(reward >= 1.0 for reward in graded), k))
    return passes


def _curves(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> dict[str, list[Values]]:
    """Curves transposed: name -> point -> one value per episode; shorter curves end in None, and failed episodes have none."""
    draw = spec.presentation.curves
    if draw is None:
        return {}
    drawn: list[Mapping[str, Sequence[float | None]]] = []
    for episode in episodes:
        has_curves = episode.stop is not StopReason.FAILED
        drawn.append((_ask(f"curves of {spec.name!r}", draw, episode) if has_curves else None) or {})
    transposed: dict[str, list[Values]] = {}
    for name in dict.fromkeys(name for curves in drawn for name in curves):
        rows = [curves.get(name, ()) for curves in drawn]
        length = max(map(len, rows))
        transposed[name] = [[] for _ in range(length)]
        for row in rows:
            for place, point in enumerate(transposed[name]):
                point.append(_number(row[place]) if place < len(row) else None)
    return transposed


def _cluster(cluster: Cluster, episodes: Sequence[Episode], places: Sequence[int]) -> str:
    """The hidden unit of a task's episodes, a unit of its own if it cannot be told.

    That of a failed episode may be unknown; it has no figures either, so its label is never read.
    """
    for place in places:
        episode = episodes[place]
        if episode.stop is not StopReason.FAILED:
            return _ask("cluster of a condition", cluster, episode) or f"task {episode.task.seed}"
    return ""


def _ask(what: str, function: Callable[[Episode], T], episode: Episode) -> T | None:
    """Calls a function of the environment on an episode. If it raises, returns None and warns, so that the episodes are kept."""
    answer, raised = ask_environment(what, function, episode)
    if raised:
        warnings.warn(f"{raised} in an episode", stacklevel=2)
    return answer


class Counts(TypedDict):
    """The part of a policy's record that counts its episodes."""

    episodes: int
    failed: int
    failures: dict[str, int]
    ungraded: int
    truncated: int
    invalid_actions: float | None
    first_failure: NotRequired[str]
    actions: NotRequired[dict[str, int]]
    usage: NotRequired[TokenCosts]


def counts(episodes: Sequence[Episode]) -> Counts:
    """Returns how many episodes there are, what went missing, and what they cost."""
    stops = Counter(episode.stop for episode in episodes)
    failures = [episode.failure for episode in episodes if episode.failure]
    kinds = Counter(f"{failure.stage}: {failure.type}" for failure in failures)
    finished = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    turns = [turn for episode in episodes for turn in episode.turns]
    invalid = sum(not turn.valid for turn in turns) / len(turns) if turns else None
    record: Counts = {
        "episodes": len(episodes),
        "failed": stops[StopReason.FAILED],
        "failures": dict(sorted(kinds.items())),
        "ungraded": sum(_reward(episode) is None for episode in finished),
        "truncated": len(finished) - stops[StopReason.TERMINATED],
        "invalid_actions": rounded(invalid),
    }
    failure = first_failure(episodes)
    if failure:
        record["first_failure"] = failure
    actions = Counter(action for turn in turns for action in _actions(turn))
    if 0 < len(actions) <= _MOST_ACTIONS:
        in_order = sorted(actions)  # most_common keeps it among equal counts
        record["actions"] = dict(Counter({action: actions[action] for action in in_order}).most_common())
    usage = _usage(turns)
    if usage is not None:
        record["usage"] = usage
    return record


def _usage(turns: Sequence[Turn]) -> TokenCosts | None:
    """Tokens of all turns, and their cost if every turn says its own."""
    usage = [turn.usage for turn in turns if turn.usage is not None]
    if not usage:
        return None
    costs = [turn.cost for turn in usage if turn.cost is not None]
    return {
        "prompt_tokens": sum(turn.prompt_tokens for turn in usage),
        "completion_tokens": sum(turn.completion_tokens for turn in usage),
        "cost": rounded(sum(costs)) if len(costs) == len(usage) else None,
    }


def first_failure(episodes: Sequence[Episode]) -> str:
    """Returns the first failure's message, or else the first grading error; an empty text if every episode went well."""
    failures = [episode.failure for episode in episodes if episode.failure]
    messages = [f"{failure.stage}: {failure.type}: {failure.message}" for failure in failures[:1]]
    messages += [episode.reward.error for episode in episodes if episode.reward and episode.reward.error]
    return beginning(" ".join(messages[0].split()), _LONG) if messages else ""


def _actions(turn: Turn) -> list[str]:
    """Returns the actions of a valid turn: names of called tools, the span named action, or the answer as it is."""
    if not turn.valid:
        return []
    if turn.calls:
        return [call.name for call in turn.calls]
    spans = [turn.action[span.start : span.end] for span in turn.spans if span.name == "action"]
    return spans[:1] or [turn.action.strip()]


def _number(value: float | None) -> float | None:
    """A figure as a finite float; anything else is missing."""
    return float(value) if value is not None and isfinite(value) else None


def rounded(value: float | None) -> float | None:
    """Six decimals: far below any interval, and above what a different order of summation can change."""
    return None if value is None else round(float(value), _DIGITS) + 0.0
