"""Checks that a seed repeats its episode: again, after others, beside others, and in another process."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gradus.core import EnvironmentSpec, Episode, Observation, Task, child_seed
from gradus.core.values import storable, without_address
from gradus.core.waiting import blocking

Draw = Callable[[int], str]
Elsewhere = Callable[[Sequence[Task], int], Sequence[Sequence[str]]]
_RAISED = "the environment raised "


def course(
    spec: EnvironmentSpec, environment: Any, task: Task, draw: Draw, seed: int
) -> Iterator[tuple[Observation, Mapping[str, Any]]]:
    """Observations and public states of one episode with random answers keyed by the task.

    An environment that raises ends its episode with an observation that says so, as a rollout would, and not the audit.
    """
    try:
        observation = environment.reset(seed=task.seed, episode_id="audit", **task.options)
        yield observation, dict(environment.state)
        for turn in range(spec.max_turns):
            if observation.terminated or observation.truncated:
                return
            observation = environment.step(draw(child_seed(seed, "hygiene", task.seed, turn) % 2**31))
            yield observation, dict(environment.state)
    except (Exception, SystemExit) as error:
        told = f"{_RAISED}{type(error).__name__}: {without_address(str(error))}"
        yield Observation(text=told, terminated=True), {}


def digests(spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int) -> list[list[str]]:
    """One digest for each observation of every task, to compare with another process."""
    return [_digests(seen) for seen, _ in _alone(spec, tasks, draw, seed)]


def _alone(spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int) -> Iterator[tuple[list[Any], str]]:
    """The course of every task in an environment of its own, and its outcome."""
    for task in tasks:
        environment = blocking(spec.make())
        seen = list(course(spec, environment, task, draw, seed))
        yield seen, json.dumps(environment.outcome(), sort_keys=True, default=str)
        environment.close()


def not_deterministic(
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    draw: Draw,
    seed: int,
    elsewhere: Elsewhere | None,
    known: Sequence[Episode] = (),
) -> list[str]:
    """Each task in a fresh environment, in a used one, after other tasks, beside another environment, and in another process.

    ``known``: episodes in which seeds may be seen to differ that do not differ under a few blind answers.
    """
    alone = list(_alone(spec, tasks, draw, seed))
    ends = [(task.seed, seen[-1][0].text) for task, (seen, _) in zip(tasks, alone, strict=True)]
    problems = [f"on seed {number} {told[:120]}" for number, told in ends if told.startswith(_RAISED)][:1]
    seen = {task.seed: _digests(each) for task, (each, _) in zip(tasks, alone, strict=True)}
    problems += _differing("rolled out twice", seen, _again(spec, tasks, draw, seed))
    problems += _differing("rolled out beside another environment", seen, _interleaved(spec, tasks, draw, seed))
    if (
        len(set(map(tuple, seen.values()))) == 1
        and len(seen) > 1
        and any(shown.action_valid for each, _ in alone for shown, _ in each[1:])  # else nothing was done in any
        and len({outcome for _, outcome in alone}) == 1  # what is hidden may differ where no blind answer shows it
        and not _seeds_differ(known)
    ):
        problems.append(f"{len(seen)} different seeds are one and the same episode")
    if elsewhere is not None and not problems:
        there = zip(tasks, elsewhere(tasks, seed), strict=True)
        problems += _differing("rolled out in a process with another PYTHONHASHSEED", seen, there)
    return problems[:3]


def _differing(how: str, first: Mapping[int, Sequence[str]], again: Iterable[tuple[Task, Sequence[str]]]) -> list[str]:
    """The first task whose observations are others than at first."""
    for task, there in again:
        here = first[task.seed]
        if list(there) != list(here):
            turn = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), len(there))
            return [f"seed {task.seed} {how} differs at turn {turn}"]
    return []


def _seeds_differ(episodes: Sequence[Episode]) -> bool:
    """Returns True if two tasks replied to the same answers in different ways, so that their hidden states differ."""
    seen: dict[tuple[str, ...], tuple[int, object]] = {}
    for episode in episodes:
        said: tuple[str, ...] = ()
        last = episode.final.text if episode.final else None
        for turn, after in zip_longest(episode.turns, episode.turns[1:]):
            said = (*said, turn.action)
            answered = (turn.env_reward, after.observation if after else last)
            task, before = seen.setdefault(said, (episode.task.seed, answered))
            if task != episode.task.seed and before != answered:
                return True
    return False


def _again(spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int) -> list[tuple[Task, list[str]]]:
    used = blocking(spec.make())
    rows = [(task, _digests(course(spec, used, task, draw, seed))) for task in (*reversed(tasks), *tasks)]
    used.close()
    return rows


def _interleaved(spec: EnvironmentSpec, tasks: Sequence[Task], draw: Draw, seed: int) -> list[tuple[Task, list[str]]]:
    """Two environments in turns, the global generator drawn from in between: neither may see it."""
    if len(tasks) < 2 or spec.max_sessions == 1:
        return []
    pair = [blocking(spec.make()), blocking(spec.make())]
    courses = [course(spec, each, task, draw, seed) for each, task in zip(pair, tasks[:2], strict=True)]
    seen: list[list[Any]] = [[], []]
    state = random.getstate()
    for steps in zip_longest(*courses):
        random.random()
        for own, step in zip(seen, steps, strict=True):
            own += [] if step is None else [step]
    random.setstate(state)
    for each in pair:
        each.close()
    return [(task, _digests(each)) for task, each in zip(tasks[:2], seen, strict=True)]


def _digests(seen: Iterable[tuple[Observation, Mapping[str, Any]]]) -> list[str]:
    return [_digest(observation) for observation, _ in seen]


def _digest(observation: Observation) -> str:
    told = [observation.text, observation.reward, observation.terminated, observation.truncated, observation.data]
    text = json.dumps(storable(told), sort_keys=True)  # mappings in one order, so that only content counts
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
