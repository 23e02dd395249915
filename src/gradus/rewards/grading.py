"""Makes a core Grader of composed rewards, and weighs a grader anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import fsum

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Message, Reward, RewardTerm, Turn
from gradus.core.calls import without_calls
from gradus.core.values import JsonDict, is_table
from gradus.rewards.catalog import RewardChoice, load_rewards
from gradus.rewards.compose import Columns, Completion, Rewards, ScoredCompletion, TrainerState, Weights

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
    ``episode.outcome["columns"]``, or from the outcome itself if it has none.
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
        self.name = name
        self.rewards = rewards

    def __call__(self, episodes: Sequence[Episode]) -> list[Reward]:
        scored = self.rewards([completion_of(episode) for episode in episodes])
        metrics = {name: fsum(values) / len(values) for name, values in self.rewards.metrics.items()}
        rewards: list[Reward] = []
        for row, (episode, completion) in enumerate(zip(episodes, scored, strict=True)):
            extras = {name: cells[row] for name, cells in self.rewards.extras.items()}
            reward = self._reward(completion, len(episode.turns))
            rewards.append(replace(reward, metrics=metrics, extras=extras))
        return rewards

    def _reward(self, scored: ScoredCompletion, turns: int) -> Reward:
        """Puts the reward of a completion at the last of its turns."""
        terms = [RewardTerm(component=component, value=value) for component, value in scored.terms.items()]
        earlier = [()] * (turns - 1)
        return Reward(
            grader=self.name,
            value=scored.value,
            components=scored.components,
            terms=(*earlier, tuple(terms)),
            error=scored.error,
        )


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
    # Rows of other environments than tables have no such field.
    if messages is None:
        messages = bool(getattr(spec.data_set, "chats", False))
    loaded = load_rewards(rewards.entries, functions=rewards.functions, messages=messages)
    if max_steps is not None:
        loaded.trainer_state = TrainerState(max_steps=max_steps, epochs_a_step=epochs_a_step)
    return grader_of(loaded, name=OWN_GRADER, summary="rewards of one's own", per_turn=spec.max_turns == 1)


def rewards_of(grader: Grader) -> Rewards | None:
    """Returns the reward functions that a grader is made of; None if it is made otherwise."""
    return grader.compute.rewards if isinstance(grader.compute, _RewardGrader) else None


def tell_steps_taken(grader: Grader, steps: int) -> None:
    """Tells reward functions how many optimizer steps were taken, as TRL does, in ``trainer_state.global_step``."""
    rewards = rewards_of(grader)
    if rewards is not None:
        rewards.trainer_state.global_step = steps


def reweigh(grader: Grader, weights: Weights) -> Grader:
    """Weighs ``grader`` anew. A component that is not named keeps its weight; weight 0 switches one off.

    Terms are scaled where they stand. A component whose weight was 0 left no term to scale; it can be switched on if
    rewards stand at the last turn: its term is weight times value. Raises ConfigError for a component it does not have.
    """
    for component in weights:
        if component not in grader.weights:
            raise ConfigError(
                f"grader {grader.name!r} has no component {component!r}; it has {', '.join(grader.weights)}"
            )
    scale: dict[str, float] = {}
    fresh: dict[str, float] = {}  # components whose weight was 0
    for component, weight in weights.items():
        if grader.weights[component]:
            scale[component] = weight / grader.weights[component]
        elif weight:
            fresh[component] = weight

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [_reweighed(reward, scale, fresh, grader.per_turn) for reward in grader.rewards(episodes)]

    # The declared range was that of the old weights.
    return replace(grader, weights={**grader.weights, **weights}, compute=compute, range=None)


def _reweighed(reward: Reward, scale: Weights, fresh: Weights, per_turn: bool) -> Reward:
    """Multiplies the terms of a reward by their component's factor, and adds those of components that had no weight to the last turn,
    which is their place unless rewards stand at each turn."""
    if reward.value is None:
        return reward
    turns = len(reward.terms)
    if fresh and per_turn and turns > 1:
        error = f"{', '.join(fresh)} had weight 0 and cannot be placed among {turns} turns"
        return replace(reward, value=None, terms=(), error=error)
    # Turn by turn, so that credit still stands at the turn and the span that earned it.
    terms = [_scaled(turn, scale, fresh) for turn in reward.terms]
    for component, weight in fresh.items():
        value = reward.components.get(component)
        if value is not None:
            terms[-1] += (RewardTerm(component=component, value=weight * value),)
    total = fsum(term.value for turn in terms for term in turn)
    return replace(reward, terms=tuple(terms), value=total)


def _scaled(turn: Sequence[RewardTerm], scale: Weights, dropped: Weights) -> tuple[RewardTerm, ...]:
    kept = [term for term in turn if term.component not in dropped]
    return tuple(replace(term, value=term.value * scale.get(term.component, 1.0)) for term in kept)


def completion_of(episode: Episode) -> Completion:
    """Returns an episode, which has a turn at least, as one completion."""
    first, *later = episode.turns
    messages = [_spoken(first)]
    for turn in later:
        messages += _seen(turn.messages, turn.observation)
        messages.append(_spoken(turn))
    if episode.final is not None:  # results that nobody read any more
        results = [message for message in episode.final.messages if message.role == "tool"]
        messages += _seen(results, "") if results else []
    columns: Columns = episode.outcome
    if is_table(columns.get("columns")):
        columns = columns["columns"]
    if any(turn.asked for turn in episode.turns):  # a foreign agent's calls
        conversation = [*_seen(first.messages, first.observation), *messages]
        columns = {**columns, "conversation": conversation}
    tokens = [turn.tokens.action_ids for turn in episode.turns if turn.tokens]
    actions = [turn.action for turn in episode.turns]
    return Completion(
        prompt=first.observation,
        completion="\n".join(actions),
        system_prompt=episode.system_prompt,
        columns=columns,
        completion_ids=tuple(chain.from_iterable(tokens)),
        messages=tuple(messages),
    )


def _seen(messages: Sequence[Message], text: str) -> list[JsonDict]:
    """Returns an observation as chat messages; a tool's has its name, as in TRL."""
    if not messages:
        return [{"role": "user", "content": text}]
    chat: list[JsonDict] = []
    for message in messages:
        record = {"role": message.role, "content": message.content}
        if message.role == "tool":
            record["name"] = message.name
        chat.append(record)
    return chat


def _spoken(turn: Turn) -> JsonDict:
    """Returns an answer as a chat message, its calls apart from its text."""
    # What could not be read as a call stays in the text, where functions can see it.
    calls = [call for call in turn.calls if call.fault != "malformed"]
    if not calls:
        return {"role": "assistant", "content": turn.action}
    tool_calls: list[JsonDict] = []
    for call in calls:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        tool_calls.append({"type": "function", "function": function})
    content = without_calls(turn.action, turn.calls)
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}
