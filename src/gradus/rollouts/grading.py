"""Grading fresh or stored episodes, one failing episode at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import fsum, isclose
from typing import Any, TypeVar

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, GradingError, Reward, RewardTerm, StopReason
from gradus.core.documents import check_metrics
from gradus.core.errors import OutOfTime
from gradus.core.foreign import STEP_SECONDS, raised_at, within
from gradus.core.records import FAULTS, LARGEST_REWARD
from gradus.core.values import number_of, plain

T = TypeVar("T")


def grade_episodes(
    spec: EnvironmentSpec, episodes: Sequence[Episode], grader: Grader, *, lowest: float = 0.0
) -> list[Episode]:
    """Grade what can be graded and fill in the metrics. Nothing is rolled out.

    A failed episode keeps no reward: it is missing, not zero. One that the model broke gets ``failed_reward``; if nobody says what that
    is, the least of ``lowest`` and these rewards. Else a policy would never learn not to break its agent.
    """
    finished = [index for index, episode in enumerate(episodes) if episode.stop not in FAULTS]
    rewards = _grade_batch(grader, [episodes[index] for index in finished])
    graded = list(episodes)
    problems: list[list[str]] = []
    for index, reward in zip(finished, rewards, strict=True):
        # A figure that is NaN is missing.
        figures = {name: plain(getattr(reward, name)) for name in ("components", "metrics", "extras")}
        episode = replace(episodes[index], reward=replace(reward, **figures))
        metrics, raised = _metrics(spec, episode)
        graded[index] = replace(episode, metrics=metrics)
        problems.append(raised)
    lowest = lowest_reward(graded, lowest)
    for index, episode in enumerate(episodes):
        if episode.stop is StopReason.BROKEN:
            graded[index] = _broken(spec, episode, grader.reward_of_broken(episode, lowest))
    # One failure is of an episode; a failure in all of them is of the environment.
    if len(problems) > 1 and all(problems):
        raise GradingError(f"{problems[0][0]} in all of {len(problems)} episodes")
    for problem in chain(*problems):
        warnings.warn(f"{problem} in an episode, where it is missing", stacklevel=2)
    return graded


def lowest_reward(episodes: Sequence[Episode], lowest: float = 0.0) -> float:
    """Return the least of ``lowest`` and all rewards."""
    values = [episode.reward_value for episode in episodes if episode.reward_value is not None]
    return min([lowest, *values])


def _broken(spec: EnvironmentSpec, episode: Episode, reward: Reward) -> Episode:
    """Return a broken episode with its reward. Its true reward is what was earned up to there, or else the same."""
    episode = replace(episode, reward=reward)
    true_reward, _ = ask_environment(f"true_reward of {spec.name!r}", spec.true_reward, episode)
    if true_reward is None:
        true_reward = reward.value
    calls = _call_counts(episode) if episode.tools else {}
    return replace(episode, metrics={**calls, "true_reward": true_reward})


def _grade_batch(grader: Grader, episodes: Sequence[Episode]) -> list[Reward]:
    """Grade all at once; if that raises, one by one, so that one bad episode costs one reward."""
    if not episodes:
        return []
    try:
        answer = grader.ask(episodes)
    except ConfigError:
        raise  # not of one episode, but of what was set up
    except (Exception, SystemExit) as error:
        # A grader that takes too long would do so for each episode.
        if len(episodes) > 1 and not isinstance(error, OutOfTime):
            return [_grade_batch(grader, [episode])[0] for episode in episodes]
        message = f"{type(error).__name__}: {error}{raised_at(error)}"
        return [_missing(grader.name, message)] * len(episodes)
    rewards: list[Reward] = []
    errors: list[GradingError] = []
    for entry, episode in zip(grader.entries(answer, episodes), episodes, strict=True):
        try:
            reward = grader.reward_of(entry, episode)
        except GradingError as error:
            errors.append(error)
            rewards.append(_missing(grader.name, str(error)))
        else:
            rewards.append(_checked(reward, episode))
    if len(errors) == len(episodes) > 1:
        raise errors[0]  # not of one episode, but of the grader
    return rewards


def _missing(grader: str, error: str) -> Reward:
    return Reward(grader=grader, value=None, error=error)


def _checked(reward: Reward, episode: Episode) -> Reward:
    """Hold a grader to its word: terms for every turn, their sum the reward, all of it finite."""
    if reward.value is None:
        return reward
    try:
        value = python_number(reward.value)
        terms = tuple(tuple(map(_term, turn)) for turn in reward.terms)
    except (TypeError, ValueError) as error:
        raise GradingError(
            f"grader {reward.grader!r} gave a reward, or a term of one, that is not a number: {error}"
        ) from error
    numbers = [value, *(term.value for term in chain(*terms))]
    for number in numbers:
        if not abs(number) <= LARGEST_REWARD:  # true of NaN too
            problem = f"the reward or a term of it is {number!r:.60}"
            return _missing(reward.grader, f"{problem}, expected a finite number, at most {LARGEST_REWARD:g}")
    reward = replace(reward, value=value, terms=terms)
    if len(terms) != len(episode.turns):
        raise GradingError(
            f"grader {reward.grader!r} gave terms for {len(terms)} turns of an episode with {len(episode.turns)}"
        )
    # Turn credit trains on the terms, reports show the value: they must be one thing.
    total = fsum(reward.turn_rewards)
    if not isclose(total, value, rel_tol=1e-6, abs_tol=1e-6):
        raise GradingError(
            f"grader {reward.grader!r}: the terms sum to {total:.6f} but the reward is {value:.6f}; "
            "turn credit would optimize something else than the reward"
        )
    return reward


def _term(term: RewardTerm) -> RewardTerm:
    """Return the term with a number of Python's in place of one of numpy or torch, which no file takes."""
    number = python_number(term.value)
    return term if number is term.value else replace(term, value=number)


def python_number(value: Any) -> float:
    """Returns a number of numpy or torch as one of Python's, whose own stay as they are: files keep 1 and 1.0 apart."""
    return value if isinstance(value, int | float) else number_of(value)


def _metrics(spec: EnvironmentSpec, episode: Episode) -> tuple[dict[str, float | None], list[str]]:
    """Return the metrics of an episode, and what its environment raised when asked for them: that is missing."""
    metrics: dict[str, float | None] = dict(episode.reward.metrics) if episode.reward else {}
    problems: list[str] = []
    if episode.tools:
        metrics |= _call_counts(episode)
    if spec.foreign:
        metrics["continued_calls"] = continued_calls(episode)
    if spec.metrics is not None:
        figures, problem = ask_environment(f"metrics of {spec.name!r}", spec.metrics, episode)
        metrics |= figures or {}
        problems.append(problem)
    # Here, because an evaluation would say so after the training.
    check_metrics(spec.name, metrics)
    metrics["true_reward"], problem = ask_environment(f"true_reward of {spec.name!r}", spec.true_reward, episode)
    problems.append(problem)
    return plain(metrics), [problem for problem in problems if problem]


def ask_environment(what: str, give: Callable[[Episode], T], episode: Episode) -> tuple[T | None, str]:
    """Ask a function of the environment about an episode; returns None and what it raised if it fails, which must not cost the episode."""
    try:
        return within(STEP_SECONDS, what, partial(give, episode)), ""
    except OutOfTime:
        raise  # it would take as long in every episode
    except (Exception, SystemExit) as error:
        return None, f"{what} raised {type(error).__name__}: {str(error)[:200]}{raised_at(error)}"


def continued_calls(episode: Episode) -> float | None:
    """Return the share of an agent's calls behind the first that go on with an earlier one; None without any."""
    later = episode.turns[1:]
    if not later:
        return None
    # A restart may begin with the prompt and the answer of an earlier call: that of turn ``after``.
    goes_on = [not turn.restart or (turn.asked is not None and turn.asked.after is not None) for turn in later]
    return sum(goes_on) / len(later)


def _call_counts(episode: Episode) -> dict[str, float | None]:
    """Count the calls of tools, and those that could not be read, were refused, or failed."""
    faults = [call.fault for turn in episode.turns for call in turn.calls]
    counts = {f"calls_{fault}": float(faults.count(fault)) for fault in ("malformed", "refused", "failed")}
    return {"calls": float(len(faults)), **counts}
