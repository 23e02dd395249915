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
from gradus.core.waiting import settled
from gradus.environments.tools.environment import ToolEnvironment

TRAIN_SEEDS = 1_000_000  # training tasks begin here; conditions stay below


def tool_environment(
    make: Callable[[], Any],
    *,
    name: str,
    summary: str = "",
    reward: Callable[[Episode], Any] | None = None,
    max_turns: int = 8,
    conditions: Mapping[str, Sequence[int]] | None = None,
    components: Sequence[str] = (),
    **more: Any,
) -> EnvironmentSpec:
    """Makes an environment whose tools are the methods of what ``make`` returns (see :class:`ToolEnvironment`).

    ``reward`` says what an episode is worth: a number, or a :class:`Reward` with terms (:func:`by_call`); it may be a coroutine. Without it the class's
    ``get_reward`` does. ``conditions``: name -> seeds below 1,000,000, which training never sees; 200 seeds of ``main`` if left
    out. ``components``: the names of the reward's parts, if they are not ``reward`` and ``call``. ``more`` are further fields of :class:`EnvironmentSpec`: policies, teacher, language, audit, true_reward.
    """
    names = components or (("reward", "call") if reward else ("reward",))
    seeds = conditions or {"main": range(200)}
    if any(not 0 <= seed < TRAIN_SEEDS for each in seeds.values() for seed in each):
        raise ConfigError(f"the seeds of conditions are 0 to {TRAIN_SEEDS - 1}; training takes those from there on")

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        given = (settled(reward(episode)) if reward else episode.outcome.get("components") for episode in episodes)
        return [_reward(episode, each) for episode, each in zip(episodes, given, strict=True)]

    return EnvironmentSpec(
        name=name,
        summary=summary or f"calls of tools: {name}",
        make=lambda: ToolEnvironment(make()),
        graders={"reward": Grader(name="reward", compute=compute, per_turn=True, weights=dict.fromkeys(names, 1.0))},
        conditions={each: Condition(name=each, seeds=numbers) for each, numbers in seeds.items()},
        train_task=lambda index: Task(environment=name, seed=TRAIN_SEEDS + index),
        max_turns=max_turns,
        true_reward=more.pop("true_reward", lambda episode: episode.outcome.get("reward")),
        true_reward_name=more.pop("true_reward_name", "reward"),
        **more,
    )


def by_call(
    episode: Episode,
    total: float | Mapping[str, float],
    calls: Callable[[ToolCall], float] | None = None,
) -> Reward:
    """Makes a reward with a term for each call that ``calls`` gives something, at the call's span, and ``total`` at the last turn.

    ``total`` is the rest of the reward, or its components by name. Span credit then pays a call's tokens for that call.
    """
    parts = dict(total) if isinstance(total, Mapping) else {"reward": float(total)}
    terms: list[tuple[RewardTerm, ...]] = []
    for turn in episode.turns:
        values = [(number, calls(call)) for number, call in enumerate(turn.calls, start=1)] if calls else []
        terms.append(tuple(RewardTerm(component="call", value=value, span=f"call_{n}") for n, value in values if value))
    if terms:
        terms[-1] += tuple(RewardTerm(component=key, value=value) for key, value in parts.items())
    each: dict[str, float | None] = {**parts}
    if calls:
        each["call"] = fsum(term.value for turn in terms for term in turn if term.component == "call")
    value = fsum(term.value for turn in terms for term in turn)
    return Reward(grader="reward", value=value, components=each, terms=tuple(terms))


def call_vocabulary(calls: Sequence[ToolCall], texts: Iterable[str] = ()) -> Vocabulary:
    """Makes a vocabulary in which ``calls`` (examples that use every tool and every value) and ``texts`` are made of whole words.

    Names, keys and values of a call are one token each, wherever in the arguments they stand. Anything else is spelled.

    >>> words = call_vocabulary([ToolCall(name="add", arguments={"a": "one", "b": "two"})]).words
    >>> '"one",' in words, '"one"}}' in words, '{"b":' in words
    (True, True, True)
    """
    words: dict[str, None] = {}
    for call in calls:
        words.update(dict.fromkeys(write_calls([call]).split()))
        for key, value in call.arguments.items():
            words.update(dict.fromkeys((f'{{"{key}":', f'"{key}":')))
            if " " not in str(value) and not isinstance(value, Mapping | list):
                said = json.dumps(value, ensure_ascii=False)
                words.update(dict.fromkeys((f"{said},", f"{said}}}}}")))
    for text in texts:
        words.update(dict.fromkeys(text.split()))
    characters = sorted({character for word in words for character in word} | set('0123456789{}[]":,.-'))
    return Vocabulary(words=[word for word in words if "▁" not in word], pieces=characters)


def _reward(episode: Episode, given: Reward | Mapping[str, float] | float | None) -> Reward:
    if isinstance(given, Reward):
        return given
    if given is None:
        return Reward(grader="reward", value=None, error="the reward function returned None")
    return by_call(episode, given)
