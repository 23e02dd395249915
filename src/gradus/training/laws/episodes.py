"""Groups looked at as a whole: members are drawn independently, and grading again gives the same rewards (laws 8 and 9)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradus.core import Episode, Grader, Group, Reward
from gradus.core.records import FAULTS
from gradus.training.laws.runner import NotMeasured, Pair

_GROUPS = 12  # before independence is asked
_ERRORS = 6.0  # standard errors
_LEAST = 0.05  # of the share of equal pairs, below which a difference is no matter
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
    yield Pair(equal / groups, expected / groups, allowed, f"the share of equal first answers in {groups:.0f} groups")


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
            yield Pair(bool(first), bool(other), 0.0, f"{place}, whether there is one")
            yield Pair(len(first), len(other), 0.0, f"{place}, how many turns it has")
            for turn, (value, again_value) in enumerate(zip(first, other, strict=True)):
                where = f"{place}, at turn {turn}" if turn else place
                yield Pair(value, again_value, 1e-9 * max(1.0, abs(value)), where)


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
