"""Labels from a teacher: its answer in each state that a student reached.

A teacher's own episodes hold only states that the teacher reaches, with its answers in the history to copy from. Labels on the
student's episodes show the student its own mistakes (DAgger, arXiv 1011.0686).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from gradus.core import EnvironmentSpec, Episode, EpisodeStart, Observation, Policy, Relabelable, Request, Turn
from gradus.core.waiting import blocking


def relabel(
    spec: EnvironmentSpec,
    teacher: Policy,
    episodes: Sequence[Episode],
    *,
    seed: int = 0,
    max_concurrent: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Return the same episodes with ``Turn.expert_action`` set to the teacher's answer at every turn it could answer.

    The teacher sees the observations that the student saw, in order. If its session remembers its own answers it is told
    the student's (``Relabelable``). Nothing is rolled out.
    """
    relabeled: list[Episode] = []
    for first in range(0, len(episodes), max_concurrent):
        part = episodes[first : first + max_concurrent]
        relabeled.extend(_relabel_part(spec, teacher, part, seed))
        if progress is not None:
            progress(len(relabeled), len(episodes))
    return relabeled


def _relabel_part(spec: EnvironmentSpec, teacher: Policy, episodes: Sequence[Episode], seed: int) -> list[Episode]:
    targets: list[list[str | None]] = [[] for _ in episodes]
    alive = set(range(len(episodes)))
    with ExitStack() as opened:
        starts = [_start(spec, episode, seed, opened) for episode in episodes]
        session = teacher.start(starts)
        opened.callback(session.close)
        for turn in range(max((len(episode.turns) for episode in episodes), default=0)):
            rows = [row for row in sorted(alive) if turn < len(episodes[row].turns)]
            shown = [episodes[row].turns[turn] for row in rows]
            requests = [Request(row=row, observation=_shown(each)) for row, each in zip(rows, shown, strict=True)]
            for row, each, action in zip(rows, shown, session.act(requests), strict=True):
                if action.failure is not None:
                    alive.discard(row)
                    continue
                targets[row].append(action.text)
                if isinstance(session, Relabelable):
                    session.replace_action(row, each.action)
    return [_with_expert_actions(episode, actions) for episode, actions in zip(episodes, targets, strict=True)]


def _start(spec: EnvironmentSpec, episode: Episode, seed: int, opened: ExitStack) -> EpisodeStart:
    """Return the episode's environment at its beginning; ``opened`` will close it."""
    environment = blocking(spec.make())
    opened.callback(environment.close)
    environment.reset(seed=episode.task.seed, **episode.task.options)
    return EpisodeStart(
        task=episode.task,
        system_prompt=episode.system_prompt,
        key=(seed, "correct", episode.task.seed, episode.member),
        group=episode.group,
        member=episode.member,
        environment=environment,
        tools=episode.tools,
    )


def _shown(turn: Turn) -> Observation:
    """Return the observation of a stored turn."""
    return Observation(text=turn.observation, messages=turn.messages, data=turn.data, restart=turn.restart)


def _with_expert_actions(episode: Episode, targets: Sequence[str | None]) -> Episode:
    padded = [*targets, *[None] * (len(episode.turns) - len(targets))]
    turns = tuple(replace(turn, expert_action=target) for turn, target in zip(episode.turns, padded, strict=True))
    return replace(episode, turns=turns)
