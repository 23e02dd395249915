"""Shows stored episodes to a policy turn by turn: what it would do, or what it states, in states that another one reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from gradus.core import EnvironmentSpec, Episode, EpisodeStart, Observation, Policy, Relabelable, Request, Session, Turn
from gradus.core.waiting import blocking
from gradus.rollouts.rollout import MAX_CONCURRENT

T = TypeVar("T")
Ask = Callable[[Session, Sequence[Request]], Sequence[T]]


def replay(
    spec: EnvironmentSpec,
    policy: Policy,
    episodes: Sequence[Episode],
    ask: Ask[T],
) -> list[list[T]]:
    """Return what ``ask(session, requests)`` says at every turn of every episode.

    The policy sees the observations of the episode, in order. If its session remembers its own answers it is told those of the episode
    (``Relabelable``). Nothing is rolled out.
    """
    answers: list[list[T]] = []
    for first in range(0, len(episodes), MAX_CONCURRENT):
        part = episodes[first : first + MAX_CONCURRENT]
        with ExitStack() as stack:
            session = policy.start([_start(spec, episode, stack) for episode in part])
            stack.callback(session.close)
            answers += _replay_part(session, part, ask)
    return answers


def _replay_part(session: Session, episodes: Sequence[Episode], ask: Ask[T]) -> list[list[T]]:
    answers: list[list[T]] = [[] for _ in episodes]
    for index in range(max(len(episode.turns) for episode in episodes)):
        rows = [row for row, episode in enumerate(episodes) if index < len(episode.turns)]
        turns = [episodes[row].turns[index] for row in rows]
        requests = [Request(row=row, observation=_observation(turn)) for row, turn in zip(rows, turns, strict=True)]
        for row, turn, answer in zip(rows, turns, ask(session, requests), strict=True):
            answers[row].append(answer)
            if isinstance(session, Relabelable):
                session.replace_action(row, turn.action)
    return answers


def _observation(turn: Turn) -> Observation:
    """Return what the policy saw before this turn."""
    return Observation(text=turn.observation, messages=turn.messages, data=turn.data, restart=turn.restart)


def _start(spec: EnvironmentSpec, episode: Episode, stack: ExitStack) -> EpisodeStart:
    """Return the episode's environment at its beginning; ``stack`` will close it."""
    environment = blocking(spec.make())
    stack.callback(environment.close)
    environment.reset(seed=episode.task.seed, **episode.task.options)
    return EpisodeStart(
        task=episode.task,
        system_prompt=episode.system_prompt,
        # A key of its own: a replay must not repeat the draws of a rollout.
        key=(0, "replay", episode.task.seed, episode.member),
        group=episode.group,
        member=episode.member,
        environment=environment,
        tools=episode.tools,
    )
