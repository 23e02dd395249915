"""Shows stored episodes to a policy turn by turn: what it would do, or what it states, in states that another one reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from gradus.core import EnvironmentSpec, Episode, EpisodeStart, Observation, Policy, Relabelable, Request, Session
from gradus.core.waiting import blocking

T = TypeVar("T")


def replay(
    spec: EnvironmentSpec,
    policy: Policy,
    episodes: Sequence[Episode],
    ask: Callable[[Session, Sequence[Request]], Sequence[T]],
    *,
    seed: int = 0,
    max_concurrent: int = 256,
) -> list[list[T]]:
    """Return what ``ask(session, requests)`` says at every turn of every episode.

    The policy sees the observations of the episode, in order. If its session remembers its own answers it is told those of the episode
    (``Relabelable``). Nothing is rolled out.
    """
    said: list[list[T]] = []
    for first in range(0, len(episodes), max_concurrent):
        said.extend(_replay_part(spec, policy, episodes[first : first + max_concurrent], ask, seed))
    return said


def _replay_part(
    spec: EnvironmentSpec,
    policy: Policy,
    episodes: Sequence[Episode],
    ask: Callable[[Session, Sequence[Request]], Sequence[T]],
    seed: int,
) -> list[list[T]]:
    said: list[list[T]] = [[] for _ in episodes]
    with ExitStack() as opened:
        session = policy.start([_start(spec, episode, seed, opened) for episode in episodes])
        opened.callback(session.close)
        for turn in range(max((len(episode.turns) for episode in episodes), default=0)):
            rows = [row for row, episode in enumerate(episodes) if turn < len(episode.turns)]
            shown = [episodes[row].turns[turn] for row in rows]
            requests = [
                Request(
                    row=row,
                    observation=Observation(
                        text=each.observation, messages=each.messages, data=each.data, restart=each.restart
                    ),
                )
                for row, each in zip(rows, shown, strict=True)
            ]
            for row, each, answer in zip(rows, shown, ask(session, requests), strict=True):
                said[row].append(answer)
                if isinstance(session, Relabelable):
                    session.replace_action(row, each.action)
    return said


def _start(spec: EnvironmentSpec, episode: Episode, seed: int, opened: ExitStack) -> EpisodeStart:
    """Return the episode's environment at its beginning; ``opened`` will close it."""
    environment = blocking(spec.make())
    opened.callback(environment.close)
    environment.reset(seed=episode.task.seed, **episode.task.options)
    return EpisodeStart(
        task=episode.task,
        system_prompt=episode.system_prompt,
        key=(seed, "replay", episode.task.seed, episode.member),
        group=episode.group,
        member=episode.member,
        environment=environment,
        tools=episode.tools,
    )
