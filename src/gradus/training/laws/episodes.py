"""Groups looked at as a whole: members are drawn independently, and grading again gives the same rewards (laws 8 and 9)."""

from __future__ import annotations

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Grader, Group, Reward
from gradus.core.records import FAULTS
from gradus.core.values import number_of, plain
from gradus.rewards.grading import rewards_of
from gradus.training.laws.runner import NotMeasured, Pair, holds
from gradus.training.laws.tasks import row_of

_GROUPS = 12  # before independence is asked
_ERRORS = 6.0  # standard errors
_LEAST = 0.05  # of the share of equal pairs, below which a difference is no matter
_RETURN = "sum of the environment's own rewards"  # as a grader says that it is
_GRADED = 2  # groups that are graded again


def add_pairs(sums: list[float], groups: Sequence[Group]) -> None:
    """Adds each group's pairs of first answers to ``sums``: groups, equal, expected, and the squares and variance of their difference.

    For two independent draws P(a = b) = E[p(a)], so 1{a = b} - (p(a) + p(b)) / 2 has mean 0.
    """
    for group in groups:
        tokens = [episode.turns[0].tokens for episode in group.episodes if episode.turns]
        answers = [answer for answer in tokens if answer is not None]
        if len(answers) < 2:
            continue
        counts = Counter(answer.action_ids for answer in answers)
        pairs = math.comb(len(answers), 2)
        equal = sum(math.comb(count, 2) for count in counts.values()) / pairs
        chances = [math.exp(min(0.0, math.fsum(answer.logprobs))) for answer in answers]
        expected = math.fsum(chances) / len(chances)
        variance = expected * (1 - expected) / len(answers)
        for place, value in enumerate((1.0, equal, expected, (equal - expected) ** 2, variance)):
            sums[place] += value


def independence(sums: Sequence[float]) -> Iterator[Pair]:
    """Equal first answers in a group are as frequent as their own probabilities say."""
    groups, equal, expected, squares, chance = sums
    if groups < _GROUPS:
        raise NotMeasured(f"{_GROUPS} groups")
    # The larger of the variance that was seen and the one that chance has: of rare events none may have happened.
    variance = max(squares - (equal - expected) ** 2 / groups, chance, 1e-12)
    allowed = max(_ERRORS * math.sqrt(variance) / groups, _LEAST)
    yield Pair(equal / groups, expected / groups, f"the share of equal first answers in {groups:.0f} groups", allowed)


def kinds_of(groups: Sequence[Group], dropped: Sequence[Group]) -> set[str]:
    """What can be seen in a step that many a step does not have: how episodes end, equal rewards, missing ones, dropped groups."""
    kinds = {"dropped"} if dropped else set[str]()
    for group in (*groups, *dropped):
        values = {None if value is None else round(value, 9) for value in group.values()}
        kinds |= {"equal"} if len(values) == 1 else set[str]()
        kinds |= {"missing"} if None in values else set[str]()
        for episode in group.episodes:
            kinds.add(episode.stop.value)
            kinds |= {"cut" for turn in episode.turns if turn.cut}
            kinds |= {"invalid" for turn in episode.turns if not turn.valid}
    return kinds


def weighed_again(groups: Sequence[Group], grader: Grader) -> Iterator[Pair]:
    """A reward is the sum of its terms, and the terms of a component are its weight times the component; the one that differs most."""
    worst = Pair(0.0, 0, "rewards and their terms")
    for episode in (episode for group in groups for episode in group.episodes):
        reward = episode.reward
        if reward is None or reward.value is None or not reward.terms or episode.stop in FAULTS:
            continue
        sums = dict.fromkeys(reward.components, 0.0)
        for term in (term for terms in reward.terms for term in terms):
            sums[term.component] = sums.get(term.component, 0.0) + term.value
        pairs = [("the sum of its terms", reward.value, math.fsum(sums.values()))]
        if grader.summary == _RETURN:
            pairs.append(
                (
                    "the sum of the environment's own rewards (env_reward) of its turns",
                    reward.value,
                    episode.env_return or 0.0,
                )
            )
        for name in grader.weights.keys() & reward.components.keys():
            weighed = grader.weights[name] * (reward.components[name] or 0.0)
            pairs += [(f"component {name} by its weight", sums[name], weighed)]
        for what, first, second in pairs:
            rounding = 1e-6 * max(1.0, abs(second))
            if abs(first - second) > max(rounding, abs(worst.first - worst.second)):
                place = (
                    f"the reward of member {episode.member} of the task with seed {episode.task.seed}, against {what}"
                )
                worst = Pair(first, second, place, rounding)
    yield worst


def asked_again(spec: EnvironmentSpec, groups: Sequence[Group], grader: Grader) -> Iterator[Pair]:
    """Each reward function, asked of one answer with the columns of the row itself, gives the component; if one raises there is no reward."""
    rewards = rewards_of(grader)
    if rewards is None or rewards.remote or spec.data_set is None or spec.max_turns > 1:
        raise NotMeasured("reward functions of this process that read the text of one answer")
    for group in groups[: -1 - _GRADED : -1]:
        episodes = [each for each in group.episodes if each.reward and each.stop not in FAULTS and len(each.turns) == 1]
        rows = [_row_and_answer(spec, episode) for episode in episodes]
        raises = [""] * len(rows)
        functions = {name: function for name, function in rewards.functions.items() if not rewards.reads_messages(name)}
        if not functions:
            raise NotMeasured("reward functions that read the text of one answer")
        for name, function in functions.items():
            alone = [_asked(function, [row]) for row in rows]
            together = _asked(function, rows) if rows else []
            if isinstance(together, list) and [[value] for value in together] != alone:
                raise NotMeasured("reward functions that look at each answer alone, and agree with themselves")
            for number, (episode, values) in enumerate(zip(episodes, alone, strict=True)):
                assert episode.reward is not None
                stored = episode.reward.components.get(name)
                value = values[0] if isinstance(values, list) else None
                place = f"member {episode.member} of the task with seed {episode.task.seed}: component {name}, against its function asked of the row"
                yield holds(stored is None, f"{place}, is missing", value is None)
                if stored is not None and value is not None:
                    yield Pair(stored, value, place, 1e-9 * max(1.0, abs(value)))
                raises[number] += values if isinstance(values, str) else ""
        for episode, error in zip(episodes, raises, strict=True):
            missing = episode.reward is not None and episode.reward.value is None
            place = f"member {episode.member} of the task with seed {episode.task.seed} has no reward"
            yield holds(missing or not error, f"{place} after {error}")


def _row_and_answer(spec: EnvironmentSpec, episode: Episode) -> dict[str, Any]:
    """What a reward function gets of an episode of one turn, by name. Raises NotMeasured for what is no row of a question."""
    item, turn = row_of(spec, episode.task), episode.turns[0]
    if not hasattr(item, "columns"):
        raise NotMeasured("rows of questions")
    return {"answer": item.answer, **plain(dict(item.columns)), "prompts": turn.observation, "completions": turn.action}


def _asked(function: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> list[float | None] | str:
    """What a reward function gives for rows, or what it raises. Raises NotMeasured if it reads what only a training has."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
    if inspect.iscoroutinefunction(function) or names - rows[0].keys():
        raise NotMeasured("reward functions that read rows and answers alone")
    arguments = {name: [copy.deepcopy(row[name]) for row in rows] for name in (rows[0] if takes_all else names)}
    try:
        return [None if value is None else number_of(value) for value in function(**arguments)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def graded_again(groups: Sequence[Group], grader: Grader) -> Iterator[Pair]:
    """Two groups, given to the grader itself as they were stored: the same reward, term by term, unless it disagrees with itself."""
    graded = [group for group in groups[::-1] if any(value is not None for value in group.values())]
    for group in graded[:_GRADED]:
        episodes = [episode for episode in group.episodes if episode.stop not in FAULTS]
        if any("judge_cost" in name for episode in episodes if episode.reward for name in episode.reward.metrics):
            raise NotMeasured("a judge that costs nothing")
        bare = [replace(episode, reward=None, metrics={}) for episode in episodes]
        again, once_more = _rewards(bare, grader), _rewards(bare, grader)
        if [_terms(reward) for reward in again] != [_terms(reward) for reward in once_more]:
            raise NotMeasured("a grader that agrees with itself")
        for episode, second in zip(episodes, again, strict=True):
            place = f"the reward of member {episode.member} of the task with seed {episode.task.seed}"
            first, other = _terms(episode.reward), _terms(second)
            yield holds(bool(first), f"{place} is there", bool(other))
            yield Pair(len(first), len(other), f"{place}, how many turns it has")
            for turn, (value, again_value) in enumerate(zip(first, other, strict=True)):
                where = f"{place}, at turn {turn}" if turn else place
                yield Pair(value, again_value, where, 1e-9 * max(1.0, abs(value)))


def _rewards(episodes: Sequence[Episode], grader: Grader) -> list[Reward | None]:
    """The rewards of the members of a group; None of one that cannot be graded."""
    try:
        return list(grader.rewards(episodes))
    except Exception:
        if len(episodes) == 1:
            return [None]
        return [_rewards([episode], grader)[0] for episode in episodes]


def _terms(reward: Reward | None) -> list[float]:
    """The reward and its part of each turn; empty without one."""
    return [] if reward is None or reward.value is None else [reward.value, *reward.turn_rewards]
