"""Makes the registration record of a class with tools, its vocabulary, and rewards that stand at the call that earned them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any

from gradus.core import (
    Condition,
    ConfigError,
    EnvironmentSpec,
    Episode,
    Grader,
    Reward,
    RewardTerm,
    Task,
    ToolCall,
    Vocabulary,
)
from gradus.core.calls import write_calls
from gradus.core.values import JsonDict, number_of
from gradus.core.waiting import settled
from gradus.environments.tools.environment import ToolEnvironment

TRAIN_SEEDS = 1_000_000  # training tasks begin here; conditions stay below
_SPELLED = '0123456789{}[]":,.-'  # the characters of calls whose values are not in the vocabulary


def tool_environment(
    make: Callable[[], Any],
    *,
    name: str,
    summary: str = "",
    reward: Callable[[Episode], Any] | None = None,
    max_turns: int = 8,
    conditions: Mapping[str, Sequence[int]] | None = None,
    **more: Any,
) -> EnvironmentSpec:
    """Makes an environment whose tools are the methods of what ``make`` returns (see :class:`ToolEnvironment`).

    ``reward`` says what an episode is worth: a number, or a :class:`Reward` with terms (:func:`by_call`); it may be a coroutine. Without it the class's
    ``get_reward`` does. ``conditions``: name -> seeds below 1,000,000, which training never sees; 200 seeds of ``main`` if left
    out. ``more`` are further fields of :class:`EnvironmentSpec`: policies, teacher, language, audit, true_reward.
    """
    conditions = conditions or {"main": range(200)}
    # A training task that is evaluated too would be learned by heart and count as skill.
    for seeds in conditions.values():
        if min(seeds) < 0 or max(seeds) >= TRAIN_SEEDS:
            raise ConfigError(f"the seeds of conditions are 0 to {TRAIN_SEEDS - 1}; training takes those from there on")

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        if reward is None:
            return [_reward(episode, episode.outcome.get("components")) for episode in episodes]
        values = [settled(reward(episode)) for episode in episodes]
        return [_reward(episode, value) for episode, value in zip(episodes, values, strict=True)]

    def true_reward(episode: Episode) -> float | None:
        return episode.outcome.get("reward")

    # Weights must name all components, or the audit would not know what a grader pays for.
    names = ("reward", "call") if reward else ("reward",)
    fields: JsonDict = {"true_reward": true_reward, "true_reward_name": "reward", **more}
    return EnvironmentSpec(
        name=name,
        summary=summary or f"calls of tools: {name}",
        make=lambda: ToolEnvironment(make()),
        graders={"reward": Grader(name="reward", compute=compute, per_turn=True, weights=dict.fromkeys(names, 1.0))},
        conditions={key: Condition(name=key, seeds=seeds) for key, seeds in conditions.items()},
        train_task=lambda index: Task(environment=name, seed=TRAIN_SEEDS + index),
        max_turns=max_turns,
        **fields,
    )


def by_call(
    episode: Episode,
    total: float | Mapping[str, float],
    calls: Callable[[ToolCall], float] | None = None,
) -> Reward:
    """Makes a reward with a term for each call that ``calls`` gives something, at the call's span, and ``total`` at the last turn.

    ``total`` is the rest of the reward, or its components by name. Span credit then pays a call's tokens for that call.
    """
    components: dict[str, float | None] = {**total} if isinstance(total, Mapping) else {"reward": number_of(total)}
    # What is not earned by a call stands at the last turn, when all is known.
    rest = tuple(RewardTerm(component=name, value=value or 0.0) for name, value in components.items())
    terms = [_call_terms(turn.calls, calls) if calls else () for turn in episode.turns]
    if calls:
        components["call"] = fsum(term.value for turn in terms for term in turn)
    terms[-1] += rest
    value = fsum(term.value for turn in terms for term in turn)
    return Reward(grader="reward", value=value, components=components, terms=tuple(terms))


def _call_terms(calls: Sequence[ToolCall], value_of: Callable[[ToolCall], float]) -> tuple[RewardTerm, ...]:
    values = enumerate(map(value_of, calls), start=1)
    return tuple(RewardTerm(component="call", value=value, span=f"call_{place}") for place, value in values if value)


def call_vocabulary(calls: Sequence[ToolCall], texts: Iterable[str] = ()) -> Vocabulary:
    """Makes a vocabulary in which ``calls`` (examples that use every tool and every value) and ``texts`` are made of whole words.

    Names, keys and values of a call are one token each, wherever in the arguments they stand. Anything else is spelled.

    >>> words = call_vocabulary([ToolCall(name="add", arguments={"a": "one", "b": "two"})]).words
    >>> '"one",' in words, '"one"}}' in words, '{"b":' in words
    (True, True, True)
    """
    words: list[str] = []
    for call in calls:
        words += write_calls([call]).split()
        for key, value in call.arguments.items():
            # The first key follows a brace, all others a space; the last value is followed by two braces.
            words += [f'{{"{key}":', f'"{key}":']
            if " " not in str(value) and not isinstance(value, Mapping | list):
                text = json.dumps(value, ensure_ascii=False)
                words += [f"{text},", f"{text}}}}}"]
    for text in texts:
        words += text.split()
    # A value that no example has is spelled, so its characters must be there.
    characters = set(_SPELLED).union(*words)
    unique = dict.fromkeys(words)
    return Vocabulary(words=[word for word in unique if "▁" not in word], pieces=sorted(characters))


def _reward(episode: Episode, value: Reward | Mapping[str, float] | float | None) -> Reward:
    if isinstance(value, Reward):
        return value
    if value is None:
        return Reward(grader="reward", value=None, error="the reward function returned None")
    return by_call(episode, value)
