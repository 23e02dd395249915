"""The first stage: a teacher plays training tasks; what it did is kept, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Policy
from gradus.rollouts import EpisodeWriter, play, read_episodes

__all__ = ["TeachSummary", "teach"]

_CHUNK = 64  # episodes between two writes: what a kill can cost


@dataclass(frozen=True, kw_only=True)
class TeachSummary:
    """What a teacher did and what it cost. ``grade_mean`` is None if nothing could be graded."""

    policy: str
    episodes: int
    played: int
    failed: int
    grade_mean: float | None
    grader: str
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def sentence(self, path: Path) -> str:
        """One line for a person."""
        grade = "–" if self.grade_mean is None else f"{self.grade_mean:.3f}"
        money = "" if self.cost is None else f", ${self.cost:.2f}"
        return (
            f"{self.policy}: {self.episodes} episodes in {path} ({self.played} played now, {self.failed} failed), "
            f"grade {self.grader} {grade}, {self.seconds:.1f} s{money}"
        )


def teach(
    spec: EnvironmentSpec,
    policy: Policy,
    *,
    episodes: int,
    path: Path,
    grader: Grader,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> TeachSummary:
    """Play training tasks 0 to ``episodes`` - 1 and append them to ``path``; tasks that are there already are not played."""
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    started = time.perf_counter()
    kept = _kept(spec, policy, path)
    first = len(kept)
    with ExitStack() as stack:
        writer: EpisodeWriter | None = (
            None  # opened with the first episodes: a teacher that does not answer leaves no file
        )
        for begin in range(first, episodes, _CHUNK):
            tasks = [spec.train_task(index) for index in range(begin, min(begin + _CHUNK, episodes))]

            def tell(done: int, _: int, before: int = begin) -> None:
                if progress is not None:
                    progress(before + done, episodes)

            played = play(
                spec, policy, tasks, seed=seed, key=("teach",), first_group=begin, grader=grader, progress=tell
            ).episodes
            writer = writer or stack.enter_context(
                EpisodeWriter(path, environment=spec.name, note=f"teacher {policy.name}")
            )
            writer.write(played)
            kept.extend(played)
    return _summary(policy, kept[:episodes], max(0, episodes - first), grader, time.perf_counter() - started)


def _kept(spec: EnvironmentSpec, policy: Policy, path: Path) -> list[Episode]:
    if not path.exists() or path.stat().st_size == 0:
        return []
    found = read_episodes(path)
    if found.environment != spec.name:
        raise ConfigError(f"{path} holds episodes of {found.environment}, not of {spec.name}; choose another --out")
    others = {episode.policy for episode in found.episodes} - {policy.name}
    if others:
        raise ConfigError(
            f"{path} holds episodes of {', '.join(sorted(others))}; adding {policy.name}'s would mix teachers, choose another --out"
        )
    return list(found.episodes)


def _summary(policy: Policy, kept: Sequence[Episode], played: int, grader: Grader, seconds: float) -> TeachSummary:
    values = [each.grade.value for each in kept if each.grade is not None and each.grade.value is not None]
    usage = [turn.usage for episode in kept for turn in episode.turns if turn.usage is not None]
    costs = [each.cost for each in usage]
    known = [cost for cost in costs if cost is not None]
    return TeachSummary(
        policy=policy.name,
        episodes=len(kept),
        played=played,
        failed=sum(each.failure is not None for each in kept),
        grade_mean=fsum(values) / len(values) if values else None,
        grader=grader.name,
        seconds=seconds,
        prompt_tokens=sum(each.prompt_tokens for each in usage),
        completion_tokens=sum(each.completion_tokens for each in usage),
        cost=fsum(known) if known and len(known) == len(costs) else None,
    )
