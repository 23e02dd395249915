"""From graded episodes to figures: a number or None per task for the reward, the environment's metrics, the components and the curves."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Literal, NamedTuple, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, StopReason, Turn
from gradus.core.documents import TokenCosts, check_metrics
from gradus.core.frozen_record import frozen_record
from gradus.core.printing import beginning
from gradus.core.records import FAULTS
from gradus.core.values import JsonDict
from gradus.rollouts.grading import ask_environment
from gradus.stats import mean_of, pass_at_k

_DIGITS = 6
_MOST_ACTIONS = 20  # different ones; beyond, answers are texts and no choice among actions
_LONG = 300  # characters of a failure's message

T = TypeVar("T")
Values = list[float | None]
Cluster = Callable[[Episode], str]


class Key(NamedTuple):
    """The name of a figure. ``group``: measures, components (of the reward) or curves, of which each ``point`` is a figure."""

    group: Literal["measures", "components", "curves"]
    name: str
    point: int = 0


REWARD, TRUE_REWARD = Key("measures", "reward"), Key("measures", "true_reward")


@frozen_record
class Figures:
    """The numbers of one policy under one condition and one grader. Lists run over the tasks."""

    episodes: Sequence[Episode]
    tasks: Sequence[int]  # their seeds
    values: Mapping[Key, Values]  # means of a task's samples
    clusters: Sequence[str] | None  # the hidden unit of each task; None without any


def figures_of(
    spec: EnvironmentSpec,
    grader: Grader,
    episodes: Sequence[Episode],
    cluster: Cluster | None,
    pass_k: Sequence[int],
) -> Figures:
    """Read the figures off ``episodes``. An episode that failed has none; it is counted, and its seed stays in place.

    ``pass_k``: for each k a figure ``pass@k``.
    """
    samples: dict[int, list[int]] = {}  # task -> places of its episodes
    for place, episode in enumerate(episodes):
        samples.setdefault(episode.task.seed, []).append(place)
    places = list(samples.values())
    by_episode = {**_measures(spec, episodes), **_components(grader, episodes), **_curves(spec, episodes)}
    values = {key: _by_task(column, places) for key, column in by_episode.items()}
    for k in pass_k:
        values[Key("measures", f"pass@{k}")] = _passes(by_episode, places, k)
    return Figures(
        episodes=episodes,
        tasks=list(samples),
        values=values,
        clusters=[_cluster(cluster, episodes, task) for task in places] if cluster else None,
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


def _by_task(values: Values, samples: Sequence[Sequence[int]]) -> Values:
    """One value a task of one value an episode; a single sample stays as it is."""
    if len(values) == len(samples):
        return values
    averages: Values = []
    for places in samples:
        averages.append(mean_of(values[place] for place in places))
    return averages


def _measures(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> dict[Key, Values]:
    """The figures of whole episodes: reward, true reward, the environment's own rewards if there are any, and its metrics."""
    names = dict.fromkeys(name for episode in episodes for name in episode.metrics)
    check_metrics(spec.name, names.keys() - {"true_reward"})
    measures = {REWARD: [episode.reward_value for episode in episodes]}
    measures[TRUE_REWARD] = _metric(episodes, "true_reward")
    returns = [_number(episode.env_return) for episode in episodes]
    # Environments of one turn mostly have no reward of their own: a figure of nothing would be noise in every table.
    if any(episode.env_return is not None for episode in episodes):
        measures[Key("measures", "env_reward")] = returns
    for name in names:
        measures[Key("measures", name)] = _metric(episodes, name)
    return measures


def _metric(episodes: Sequence[Episode], name: str) -> Values:
    return [_number(episode.metrics.get(name)) for episode in episodes]


def _components(grader: Grader, episodes: Sequence[Episode]) -> dict[Key, Values]:
    rewards = [episode.reward for episode in episodes]
    values: dict[Key, Values] = {}
    for name in grader.weights:
        column = [reward.components.get(name) if reward else None for reward in rewards]
        values[Key("components", name)] = [_number(value) for value in column]
    return values


def _passes(values: Mapping[Key, Values], samples: Sequence[Sequence[int]], k: int) -> Values:
    """Returns pass@k of each task. An episode passes if its true reward is 1; without true rewards, if its reward is 1."""
    outcomes = values[TRUE_REWARD]
    if all(outcome is None for outcome in outcomes):
        outcomes = values[REWARD]
    passes: Values = []
    for places in samples:
        rewards = [outcomes[place] for place in places]
        graded = [reward for reward in rewards if reward is not None]
        passed = sum(reward >= 1.0 for reward in graded)
        passes.append(pass_at_k(len(graded), passed, k))
    return passes


def _curves(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> dict[Key, Values]:
    """The points of curves; shorter curves end in None, and failed episodes have none."""
    draw = spec.presentation.curves
    if draw is None:
        return {}
    drawn: list[Mapping[str, Sequence[float | None]]] = []
    for episode in episodes:
        # A function of the environment may expect an outcome that a broken episode does not have.
        is_whole = episode.stop not in FAULTS
        curves = _ask(f"curves of {spec.name!r}", draw, episode) if is_whole else None
        drawn.append(curves or {})
    values: dict[Key, Values] = {}
    for name in dict.fromkeys(name for curves in drawn for name in curves):
        rows = [curves.get(name, ()) for curves in drawn]
        for point in range(max(map(len, rows))):
            column = [row[point] if point < len(row) else None for row in rows]
            values[Key("curves", name, point)] = [_number(value) for value in column]
    return values


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


def counts(episodes: Sequence[Episode]) -> JsonDict:
    """Returns the counts of a policy's record: how many episodes there are, what went missing, and what they cost."""
    stops = Counter(episode.stop for episode in episodes)
    failures = [episode.failure for episode in episodes if episode.failure]
    kinds = Counter(f"{failure.stage}: {failure.type}" for failure in failures)
    finished = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    turns = [turn for episode in episodes for turn in episode.turns]
    invalid = sum(not turn.valid for turn in turns) / len(turns) if turns else None
    record: JsonDict = {
        "episodes": len(episodes),
        "failed": stops[StopReason.FAILED],
        "broken": stops[StopReason.BROKEN],
        "failures": dict(sorted(kinds.items())),
        "ungraded": sum(episode.reward_value is None for episode in finished),
        "truncated": len(finished) - stops[StopReason.TERMINATED] - stops[StopReason.BROKEN],
        "invalid_actions": rounded(invalid),
    }
    failure = first_failure(episodes)
    if failure:
        record["first_failure"] = failure
    actions = Counter(action for turn in turns for action in _actions(turn))
    if 0 < len(actions) <= _MOST_ACTIONS:
        # The most frequent first, and of equally frequent ones by the alphabet: most_common keeps the order.
        in_order = Counter(dict(sorted(actions.items())))
        record["actions"] = dict(in_order.most_common())
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
    return None if value is None else round(float(value), _DIGITS) + 0.0  # which makes 0.0 of -0.0
