"""Makes a core Grader of composed rewards, and weighs a grader anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Message, Reward, RewardTerm, Turn
from gradus.core.calls import without_calls
from gradus.rewards.catalog import RewardChoice, load_rewards
from gradus.rewards.compose import Completion, Rewards, ScoredCompletion

OWN_GRADER = "rewards"  # the name of every composition of reward functions
WEIGHED = "-weighed"  # the end of the name of a grader with other weights


def grader_of(
    rewards: Rewards,
    *,
    name: str,
    summary: str = "",
    range: tuple[float, float] | None = None,
    per_turn: bool = True,
) -> Grader:
    """Makes a grader that scores episodes by ``rewards``; pass ``per_turn=False`` if episodes have several turns.

    The prompt is the first observation. The completion is the answer, or all answers of several turns, one after another; as
    chat messages it is the rest of the conversation. The reward stands at the last turn. The columns come from
    ``episode.outcome["columns"]``, or from the outcome itself if it has none. An episode without an answer is an error.
    """
    compute = _RewardGrader(name, rewards)
    return Grader(
        name=name,
        summary=summary,
        weights=dict(rewards.weights),
        compute=compute,
        per_turn=per_turn,
        range=range,
        remote=rewards.remote,
    )


class _RewardGrader:
    """The function of a grader of rewards; it holds them, so that they can be told the step."""

    def __init__(self, name: str, rewards: Rewards) -> None:
        self.name, self.rewards = name, rewards

    def __call__(self, episodes: Sequence[Episode]) -> list[Reward]:
        rows = {place: completion_of(episode) for place, episode in enumerate(episodes) if episode.turns}
        scored = dict(zip(rows, self.rewards(list(rows.values())), strict=True))
        logged = {name: fsum(values) / len(values) for name, values in self.rewards.metrics.items()}
        extras = {
            place: {name: values[number] for name, values in self.rewards.extras.items()}
            for number, place in enumerate(rows)
        }
        return [
            replace(_grade(self.name, scored[place], len(episode.turns)), metrics=logged, extras=extras[place])
            if place in scored
            else Reward(grader=self.name, value=None, error="expected an episode with an answer, got none")
            for place, episode in enumerate(episodes)
        ]


def own_grader(
    spec: EnvironmentSpec,
    rewards: RewardChoice,
    *,
    messages: bool | None = None,
    max_steps: int | None = None,
    epochs_a_step: float | None = None,
) -> Grader:
    """Makes a grader of an environment from reward functions. With several turns the reward stands at the last one.

    ``messages``: the functions get chat messages; None, as in TRL: if the rows are chats. ``max_steps``: of the training whose progress
    the functions are told; None outside a training. ``epochs_a_step``: see :class:`TrainerState`.
    """
    messages = bool(getattr(spec.data_set, "chats", False)) if messages is None else messages
    loaded = load_rewards(rewards.entries, functions=rewards.functions, messages=messages)
    if max_steps is not None:
        loaded.trainer_state.max_steps, loaded.trainer_state.epochs_a_step = max_steps, epochs_a_step
    return grader_of(loaded, name=OWN_GRADER, summary="rewards of one's own", per_turn=spec.max_turns == 1)


def rewards_of(grader: Grader) -> Rewards | None:
    """Returns the reward functions that a grader is made of; None if it is made otherwise."""
    return grader.compute.rewards if isinstance(grader.compute, _RewardGrader) else None


def tell_steps_taken(grader: Grader, steps: int) -> None:
    """Tells reward functions how many optimizer steps were taken, as TRL does, in ``trainer_state.global_step``."""
    if (rewards := rewards_of(grader)) is not None:
        rewards.trainer_state.global_step = steps


def reweigh(grader: Grader, weights: Mapping[str, float]) -> Grader:
    """Weighs ``grader`` anew. A component that is not named keeps its weight; weight 0 switches one off.

    Terms are scaled where they stand. A component whose weight was 0 left no term to scale; it can be switched on if
    rewards stand at the last turn: its term is weight times value. Raises ConfigError for a component it does not have.
    """
    for component in weights:
        if component not in grader.weights:
            raise ConfigError(
                f"grader {grader.name!r} has no component {component!r}; it has {', '.join(grader.weights)}"
            )
    scale = {name: weight / grader.weights[name] for name, weight in weights.items() if grader.weights[name]}
    fresh = {name: weight for name, weight in weights.items() if weight and not grader.weights[name]}

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [_reweighed(reward, scale, fresh, grader.per_turn) for reward in grader.rewards(episodes)]

    return replace(grader, weights={**grader.weights, **weights}, compute=compute, range=None)


def _reweighed(reward: Reward, scale: Mapping[str, float], fresh: Mapping[str, float], per_turn: bool) -> Reward:
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
        if not terms or (per_turn and len(terms) > 1):
            names = ", ".join(fresh)
            return replace(
                reward,
                value=None,
                terms=(),
                error=f"{names} had weight 0 and cannot be placed among {len(terms)} turns",
            )
        known = {name: reward.components.get(name) for name in fresh}
        terms[-1] += tuple(
            RewardTerm(component=name, value=fresh[name] * value) for name, value in known.items() if value is not None
        )
    return replace(reward, terms=tuple(terms), value=fsum(term.value for turn in terms for term in turn))


def completion_of(episode: Episode) -> Completion:
    """Returns an episode, which has a turn at least, as one completion."""
    first, *later = episode.turns
    columns = episode.outcome.get("columns")
    columns = columns if isinstance(columns, Mapping) else episode.outcome
    messages = [_spoken(first)]
    for turn in later:
        messages += [*_seen(turn.messages, turn.observation), _spoken(turn)]
    if episode.final is not None and episode.final.messages:  # results that nobody read any more
        messages += [each for each in _seen(episode.final.messages, "") if each["role"] == "tool"]
    if any(turn.asked for turn in episode.turns):  # a foreign agent's calls
        columns = {**columns, "conversation": [*_seen(first.messages, first.observation), *messages]}
    return Completion(
        prompt=first.observation,
        completion="\n".join(turn.action for turn in episode.turns),
        system_prompt=episode.system_prompt,
        columns=columns,
        completion_ids=tuple(token for turn in episode.turns if turn.tokens for token in turn.tokens.action_ids),
        messages=tuple(messages),
    )


def _seen(messages: Sequence[Message], text: str) -> list[dict[str, Any]]:
    """Returns an observation as chat messages; a tool's has its name, as in TRL."""
    if not messages:
        return [{"role": "user", "content": text}]
    return [
        {"role": each.role, "content": each.content, **({"name": each.name} if each.role == "tool" else {})}
        for each in messages
    ]


def _spoken(turn: Turn) -> dict[str, Any]:
    """Returns an answer as a chat message, its calls apart from its text."""
    calls = [
        {"type": "function", "function": {"name": each.name, "arguments": dict(each.arguments)}}
        for each in turn.calls
        if each.fault != "malformed"
    ]
    if not calls:
        return {"role": "assistant", "content": turn.action}
    return {"role": "assistant", "content": without_calls(turn.action, turn.calls), "tool_calls": calls}


def _grade(name: str, scored: ScoredCompletion, turns: int) -> Reward:
    terms = tuple(RewardTerm(component=component, value=value) for component, value in scored.terms.items())
    return Reward(
        grader=name,
        value=scored.value,
        components=scored.components,
        terms=(*((),) * (turns - 1), terms),
        error=scored.error,
    )
