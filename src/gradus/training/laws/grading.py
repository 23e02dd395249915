"""Groups looked at as a whole: members are drawn independently, and grading again gives the same rewards and true rewards (laws 8 and 9)."""

from __future__ import annotations

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from gradus.core import EnvironmentSpec, Episode, Grader, Group, Reward, Task
from gradus.core.records import FAULTS
from gradus.core.values import number_of, plain
from gradus.rewards.grading import rewards_of
from gradus.rollouts import episodes_of
from gradus.rollouts.grading import ask_environment
from gradus.training.data.sequences import Episodes, Groups
from gradus.training.laws.runner import NotMeasured, Pair, Pairs, close, holds, same_or_missing, worst_of

_GROUPS = 12  # before independence is asked
_ERRORS = 6.0  # standard errors
_LEAST = 0.05  # difference of the share of equal pairs that always passes
_RETURN = "sum of the environment's own rewards"  # as a grader says that it is
_GRADED = 2  # groups that are graded again
_TRUTHS = 4  # members of a group whose true reward is asked again


def add_pairs(sums: list[float], groups: Groups) -> None:
    """Adds each group's pairs of first answers to ``sums``: groups, equal, expected, and the squares and variance of their difference.

    For two independent draws P(a = b) = E[p(a)], so 1{a = b} - (p(a) + p(b)) / 2 has mean 0.
    """
    for group in groups:
        first_turns = [episode.turns[0] for episode in group.episodes if episode.turns]
        answers = [turn.tokens for turn in first_turns if turn.tokens is not None]
        if len(answers) < 2:
            continue
        counts = Counter(answer.action_ids for answer in answers)
        equal_pairs = sum(math.comb(count, 2) for count in counts.values())
        equal = equal_pairs / math.comb(len(answers), 2)
        chances = [math.exp(min(0.0, math.fsum(answer.logprobs))) for answer in answers]
        expected = math.fsum(chances) / len(chances)
        variance = expected * (1 - expected) / len(answers)
        for place, value in enumerate((1.0, equal, expected, (equal - expected) ** 2, variance)):
            sums[place] += value


def independence(sums: Sequence[float]) -> Pairs:
    """Equal first answers in a group are as frequent as their own probabilities say."""
    groups, equal, expected, squares, chance = sums
    if groups < _GROUPS:
        raise NotMeasured(f"{_GROUPS} groups")
    # The larger of the variance that was seen and the one that chance has: of rare events none may have happened.
    variance = max(squares - (equal - expected) ** 2 / groups, chance, 1e-12)
    allowed = max(_ERRORS * math.sqrt(variance) / groups, _LEAST)
    yield Pair(equal / groups, expected / groups, f"the share of equal first answers in {groups:.0f} groups", allowed)


def kinds_of(groups: Groups, dropped: Groups) -> set[str]:
    """What can be seen in a step that many a step does not have: how episodes end, equal rewards, missing ones, dropped groups."""
    kinds = {"dropped"} if dropped else set[str]()
    for group in (*groups, *dropped):
        rewards = {None if value is None else round(value, 9) for value in group.values()}
        if len(rewards) == 1:
            kinds.add("equal")
        if None in rewards:
            kinds.add("missing")
        for episode in group.episodes:
            kinds.add(episode.stop.value)
            if any(turn.cut for turn in episode.turns):
                kinds.add("cut")
            if not all(turn.valid for turn in episode.turns):
                kinds.add("invalid")
    return kinds


def weighed_again(groups: Groups, grader: Grader) -> Pairs:
    """A reward is the sum of its terms, and the terms of a component are its weight times the component; the one that differs most."""
    for episode in episodes_of(groups):
        reward = episode.reward
        if reward is None or reward.value is None or not reward.terms or episode.stop in FAULTS:
            continue
        sums = dict.fromkeys(reward.components, 0.0)
        for term in chain.from_iterable(reward.terms):
            sums[term.component] = sums.get(term.component, 0.0) + term.value
        twice = {"the sum of its terms": (reward.value, math.fsum(sums.values()))}
        if grader.summary == _RETURN:
            twice["the sum of its environment's own rewards (env_reward)"] = reward.value, _earned(episode)
        for name in grader.weights.keys() & reward.components.keys():
            weighed = grader.weights[name] * (reward.components[name] or 0.0)
            twice[f"component {name} by its weight"] = sums[name], weighed
        for what, (first, second) in twice.items():
            yield close(first, second, 1e-6, f"the reward of {member_of(episode)}, against {what}")


def _earned(episode: Episode) -> float:
    return math.fsum(turn.env_reward or 0.0 for turn in episode.turns)


def asked_again(spec: EnvironmentSpec, groups: Groups, grader: Grader) -> Pairs:
    """Each reward function, asked of one answer with the columns of the row itself, gives the component; if one raises there is no reward."""
    rewards = rewards_of(grader)
    if rewards is None or rewards.remote or spec.data_set is None or spec.max_turns > 1:
        raise NotMeasured("reward functions of this process that read the text of one answer")
    functions = {name: function for name, function in rewards.functions.items() if not rewards.reads_messages(name)}
    if not functions:
        raise NotMeasured("reward functions that read the text of one answer")
    for group in groups[: -1 - _GRADED : -1]:
        usable = [episode for episode in group.episodes if episode.reward and episode.stop not in FAULTS]
        episodes = [episode for episode in usable if len(episode.turns) == 1]
        rows = [_row_and_answer(spec, episode) for episode in episodes]
        if not rows:
            continue
        for name, function in functions.items():
            alone = [_asked(function, [row]) for row in rows]
            together = _asked(function, rows)
            if isinstance(together, list) and [[value] for value in together] != alone:
                raise NotMeasured("reward functions that look at each answer alone, and agree with themselves")
            for episode, result in zip(episodes, alone, strict=True):
                yield from _same_component(episode, name, result)


def _same_component(episode: Episode, name: str, result: list[float | None] | str) -> Pairs:
    """Holds a component of a reward to what its function gives, or to the missing reward if it raises."""
    assert episode.reward is not None
    stored = episode.reward.components.get(name)
    value = result[0] if isinstance(result, list) else None
    place = f"{member_of(episode)}: component {name}, against its function asked of the row"
    yield from same_or_missing(stored, value, 1e-9, place)
    missing = isinstance(result, list) or episode.reward.value is None
    yield holds(missing, f"{member_of(episode)} has no reward after {result}")


def _row_and_answer(spec: EnvironmentSpec, episode: Episode) -> dict[str, Any]:
    """What a reward function gets of an episode of one turn, by name. Raises NotMeasured for what is no row of a question."""
    item, turn = row_of(spec, episode.task), episode.turns[0]
    if not hasattr(item, "columns"):
        raise NotMeasured("rows of questions")
    return {"answer": item.answer, **plain(dict(item.columns)), "prompts": turn.observation, "completions": turn.action}


def _asked(function: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> list[float | None] | str:
    """What a reward function gives for rows, or what it raises. Raises NotMeasured if it reads what only a training has."""
    parameters = inspect.signature(function).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD}
    if inspect.iscoroutinefunction(function) or names - rows[0].keys():
        raise NotMeasured("reward functions that read rows and answers alone")
    if len(names) < len(parameters):  # it takes **columns
        names = rows[0].keys()
    arguments: dict[str, list[Any]] = {}
    for name in names:
        # Copies: a function may change what it is given, and it is asked several times.
        arguments[name] = [copy.deepcopy(row[name]) for row in rows]
    try:
        return [None if value is None else number_of(value) for value in function(**arguments)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def graded_again(spec: EnvironmentSpec, groups: Groups, grader: Grader) -> Pairs:
    """Two groups, given to the grader and the true reward as they were stored: the same, term by term, unless one disagrees with itself."""
    graded = filter(_has_reward, groups[::-1])
    for group in islice(graded, _GRADED):
        episodes = [episode for episode in group.episodes if episode.stop not in FAULTS]
        rewards = [episode.reward for episode in episodes if episode.reward]
        if any("judge_cost" in name for reward in rewards for name in reward.metrics):
            raise NotMeasured("a judge that costs nothing")
        bare = [replace(episode, reward=None, metrics={}) for episode in episodes]
        again, once_more = _rewards(bare, grader), _rewards(bare, grader)
        if again != once_more:
            raise NotMeasured("a grader that agrees with itself")
        for episode, second in zip(episodes, again, strict=True):
            place = f"the reward of {member_of(episode)} (and of its turns)"
            first = _numbers(episode.reward)
            yield Pair(len(first), len(second), f"{place}, how many numbers there are")
            rounding = 1e-9 * max([1.0, *map(abs, first)])
            # With a 0 in front there is something to compare if both have no reward.
            yield worst_of(np.array([0.0, *first]), np.array([0.0, *second]), place, rounding)
        for episode in () if spec.asks else episodes[:_TRUTHS]:
            yield from _truth_again(spec, episode)


def _truth_again(spec: EnvironmentSpec, episode: Episode) -> Pairs:
    """The true reward of an episode is what its environment says, and the return is the sum of the environment's own rewards."""
    place, stored = member_of(episode), episode.metrics.get("true_reward")
    yield close(episode.env_return or 0.0, _earned(episode), 1e-9, f"{place}: the return, a sum of env_reward")
    truth, _ = ask_environment("", spec.true_reward, episode)
    once_more, _ = ask_environment("", spec.true_reward, episode)
    if truth == once_more:
        yield from same_or_missing(stored, truth, 1e-9, f"{place}: the true reward")


def member_of(episode: Episode) -> str:
    """Names an episode."""
    return f"member {episode.member} of the task with seed {episode.task.seed}"


def row_of(spec: EnvironmentSpec, task: Task) -> Any:
    """The row of the data set that a task asks."""
    assert spec.data_set is not None
    return spec.data_set.item(task.options.get("split", "train"), task.seed)


def _has_reward(group: Group) -> bool:
    return any(value is not None for value in group.values())


def _rewards(episodes: Episodes, grader: Grader) -> list[list[float]]:
    """The rewards of the members of a group, in numbers; none of one that cannot be graded."""
    try:
        return [_numbers(reward) for reward in grader.rewards(episodes)]
    except Exception:
        if len(episodes) == 1:
            return [[]]
        return [_rewards([episode], grader)[0] for episode in episodes]


def _numbers(reward: Reward | None) -> list[float]:
    """The reward and its part of each turn; empty without one."""
    if reward is None or reward.value is None:
        return []
    return [reward.value, *reward.turn_rewards]
