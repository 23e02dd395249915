"""From composed rewards to a core Grader over one-turn episodes, and a grader under other weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

from gradus.core import ConfigError, Episode, Grader, Reward, RewardTerm
from gradus.rewards.compose import Completion, Rewards, ScoredCompletion

__all__ = ["grader_of", "reweigh", "tell_step"]


def grader_of(rewards: Rewards, *, name: str, summary: str = "", range: tuple[float, float] | None = None) -> Grader:
    """A grader that gives what ``rewards`` say of each episode's one answer.

    The columns come from ``episode.outcome["columns"]``, or from the outcome itself where it has none. An episode without
    an answer, or with more than one, is an error of that episode.
    """
    reward = _RewardGrader(name, rewards)
    return Grader(name=name, summary=summary, weights=dict(rewards.weights), compute=reward, per_turn=True, range=range)


class _RewardGrader:
    """The reward function of rewards; it keeps hold of them, so that they can be told the step."""

    def __init__(self, name: str, rewards: Rewards) -> None:
        self.name, self.rewards = name, rewards

    def __call__(self, episodes: Sequence[Episode]) -> list[Reward]:
        rows = {place: _completion(episode) for place, episode in enumerate(episodes) if len(episode.turns) == 1}
        scored = dict(zip(rows, self.rewards(list(rows.values())), strict=True))
        return [
            _grade(self.name, scored[place])
            if place in scored
            else Reward(
                grader=self.name, value=None, error=f"expected an episode of one turn, got {len(episode.turns)}"
            )
            for place, episode in enumerate(episodes)
        ]


def tell_step(grader: Grader, step: int) -> None:
    """Let reward functions see the optimizer step that is about to be taken, as TRL does: ``trainer_state.global_step`` counts
    the steps that were taken before. Nothing happens where the grader is not made of reward functions."""
    if isinstance(grader.compute, _RewardGrader):
        grader.compute.rewards.trainer_state.global_step = step - 1


def reweigh(grader: Grader, weights: Mapping[str, float]) -> Grader:
    """``grader`` under other weights; a component that is not named keeps its own, one with weight 0 counts for nothing.

    Terms are scaled where they stand. A component whose weight was 0 left no term to scale; it can be switched on
    for episodes of one turn, where its term is weight times value. Raises ConfigError for a component it does not have.
    """
    for component in weights:
        if component not in grader.weights:
            raise ConfigError(
                f"grader {grader.name!r} has no component {component!r}; it has {', '.join(grader.weights)}"
            )
    scale = {name: weight / grader.weights[name] for name, weight in weights.items() if grader.weights[name]}
    fresh = {name: weight for name, weight in weights.items() if weight and not grader.weights[name]}

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [_reweighed(reward, scale, fresh) for reward in grader.rewards(episodes)]

    return replace(grader, weights={**grader.weights, **weights}, compute=compute, range=None)


def _reweighed(reward: Reward, scale: Mapping[str, float], fresh: Mapping[str, float]) -> Reward:
    if reward.value is None:
        return reward
    terms = [
        tuple(
            replace(term, value=term.value * scale.get(term.component, 1.0))
            for term in turn
            if term.component not in fresh
        )
        for turn in reward.terms
    ]
    if fresh:
        if len(terms) != 1:
            names = ", ".join(fresh)
            return replace(
                reward,
                value=None,
                terms=(),
                error=f"{names} had weight 0 and cannot be placed among {len(terms)} turns",
            )
        known = {name: reward.components.get(name) for name in fresh}
        terms[0] += tuple(
            RewardTerm(component=name, value=fresh[name] * value) for name, value in known.items() if value is not None
        )
    return replace(reward, terms=tuple(terms), value=fsum(term.value for turn in terms for term in turn))


def _completion(episode: Episode) -> Completion:
    turn = episode.turns[0]
    columns = episode.outcome.get("columns")
    return Completion(
        prompt=turn.observation,
        completion=turn.action,
        system_prompt=episode.system_prompt,
        columns=columns if isinstance(columns, Mapping) else episode.outcome,
        completion_ids=turn.tokens.action_ids if turn.tokens else (),
    )


def _grade(name: str, scored: ScoredCompletion) -> Reward:
    terms = tuple(RewardTerm(component=component, value=value) for component, value in scored.terms.items())
    return Reward(grader=name, value=scored.value, components=scored.components, terms=(terms,), error=scored.error)
