"""A teacher answers training tasks. Its episodes are stored as they come, with what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import fsum
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Episode, Grader, Policy
from gradus.core.printing import go_around
from gradus.core.records import FAULTS
from gradus.core.values import JsonDict
from gradus.environments.verifiable.items import TableTasks
from gradus.rewards.grading import OWN_GRADER, WEIGHED
from gradus.rollouts import EpisodeWriter, grade_episodes, read_episodes, roll_out, write_episodes
from gradus.runs.progress import progress_bar
from gradus.runs.recipe import MOST_EPISODES
from gradus.runs.sources import rows_digest
from gradus.stats import format_money, format_number
from gradus.training.data.tasks import taught_indices

_CHUNK = 64  # episodes between two writes: what a kill can cost
_COSTS = ("episodes", "rolled_out", "failed", "reward_mean", "prompt_tokens", "completion_tokens", "cost", "reason")

Span = tuple[int, list[int]]  # the number of the first episode, and the indices of the training tasks


@dataclass(kw_only=True)
class TeachSummary:
    """Counts and costs of a teacher's episodes."""

    policy: str
    grader: str
    episodes: int = 0  # that are stored, of earlier calls too
    rolled_out: int = 0  # by this call
    failed: int = 0
    reason: str | None = None  # of the first failure, or of the first grader's error
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rewards: list[float] = field(default_factory=list[float])
    costs: list[float | None] = field(default_factory=list[float | None])  # of each answer; None if it is not known

    @property
    def reward_mean(self) -> float | None:
        """None if nothing could be graded."""
        return fsum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def cost(self) -> float | None:
        """US dollars; None if the cost of a single answer is not known."""
        costs = [cost for cost in self.costs if cost is not None]
        return fsum(costs) if costs and len(costs) == len(self.costs) else None

    def count(self, episodes: Sequence[Episode]) -> None:
        """Add episodes; they are too large to be kept for the summary."""
        for episode in episodes:
            self.episodes += 1
            if episode.stop in FAULTS:  # what a limit cut is graded, and learned from
                self.failed += 1
                self.reason = self.reason or (episode.failure and episode.failure.message)
            reward = episode.reward
            if reward is not None and reward.value is not None:
                self.rewards.append(reward.value)
            elif reward is not None:
                self.reason = self.reason or reward.error
            for turn in episode.turns:
                if turn.usage is not None:
                    self.prompt_tokens += turn.usage.prompt_tokens
                    self.completion_tokens += turn.usage.completion_tokens
                    self.costs.append(turn.usage.cost)

    def as_costs(self) -> JsonDict:
        """Returns what ``costs.json`` stores of the stage."""
        return {name: getattr(self, name) for name in _COSTS}

    def sentence(self, path: Path) -> str:
        """One line for a person."""
        counts = f"{self.episodes} episodes in {path} ({self.rolled_out} rolled out now, {self.failed} failed)"
        line = f"{self.policy}: {counts}, reward {self.grader} {format_number(self.reward_mean)}, {self.seconds:.1f} s"
        tokens = self.prompt_tokens + self.completion_tokens
        if tokens:
            line += f", {tokens:,} tokens"
        if self.cost is not None:
            line += f", {format_money(self.cost)}"
        return line if self.reason is None else f"{line}; the first failure: {self.reason}"


def teach(
    spec: EnvironmentSpec,
    policy: Policy,
    *,
    episodes: int,
    path: Path,
    grader: Grader,
    seed: int = 0,
    reserved: frozenset[str] = frozenset(),
) -> TeachSummary:
    """Roll out the first ``episodes`` training tasks and append them to ``path``; those that are there already are left out.

    ``reserved``: ids of tasks that judge (``gradus.training.data.tasks.reserved_ids``); they are not taught.
    """
    if not 1 <= episodes <= MOST_EPISODES:
        raise ConfigError(f"episodes must be at least 1 and at most {MOST_EPISODES:,}, got {episodes}")
    started = time.perf_counter()
    summary = TeachSummary(policy=policy.name, grader=grader.name)
    # The note is compared by a later call: episodes of another teacher, seed, rows or split are not mixed with these.
    note = f"teacher {policy.name}, seed {seed}"
    if isinstance(spec.data_set, TableTasks):
        note += f", rows {rows_digest(spec.data_set)[:12]}"
    if reserved:
        note += f", held out {sha256(' '.join(sorted(reserved)).encode()).hexdigest()[:12]}"
    kept = _kept(spec, path, note, grader)
    # An earlier call may have stored more than this one asks for.
    summary.count([episode for index, episode in sorted(kept.items()) if index < episodes])
    # An answer of a teacher behind an API costs money, so few are under way between two writes.
    spans = _missing(kept, taught_indices(spec, episodes, reserved), getattr(policy, "concurrency", _CHUNK))
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar(f"teach · {policy.name}", episodes, "episodes"))
        writer: EpisodeWriter | None = None  # a teacher without an answer leaves no file
        for first, indices in spans:
            tasks = [spec.train_task(index) for index in indices]
            rolled = roll_out(
                spec,
                policy,
                tasks,
                seed=seed,
                key=("teach",),
                first_group=first,
                grader=grader,
                progress=partial(_show, advance, first, episodes),
            ).episodes
            writer = writer or stack.enter_context(EpisodeWriter(path, environment=spec.name, note=note))
            writer.write(rolled)
            summary.count(rolled)
    summary.rolled_out = sum(len(indices) for _, indices in spans)
    summary.seconds = time.perf_counter() - started
    return summary


def _show(advance: Callable[..., None], first: int, episodes: int, done: float, _: int) -> None:
    """Shows how many of all episodes are there."""
    advance(first + done, episodes)


def _missing(kept: Mapping[int, Episode], indices: Sequence[int], size: int) -> list[Span]:
    """Returns the tasks without an episode, in stretches of at most ``size``."""
    spans: list[Span] = []
    for place, index in enumerate(indices):
        if place in kept:
            continue
        if spans and spans[-1][0] + len(spans[-1][1]) == place and len(spans[-1][1]) < size:
            spans[-1][1].append(index)
        else:
            spans.append((place, [index]))
    return spans


def _kept(spec: EnvironmentSpec, path: Path, note: str, grader: Grader) -> dict[int, Episode]:
    """The episodes of an earlier call by the number of their task, without those that failed.

    The file is written anew if it holds anything else: failed episodes, damaged lines, another grader's rewards. Raises ConfigError
    if it is another teacher's, another environment's or another seed's, or if other rows are held out.
    """
    if not path.exists() or path.stat().st_size == 0:
        return {}
    stored = read_episodes(path)
    if stored.environment != spec.name:
        raise ConfigError(f"{path} holds episodes of {stored.environment}, not of {spec.name}; choose another --out")
    if stored.note != note:
        raise ConfigError(f"{path} holds episodes of {stored.note}, asked for is {note}; choose another --out")
    # Each task is a group of one here, so that the number of the group is that of the task.
    kept = {episode.group: episode for episode in stored.episodes if episode.stop not in FAULTS}
    stale = [index for index, episode in kept.items() if not _graded_by(episode, grader)]
    if stale:
        graded = grade_episodes(spec, [kept[index] for index in stale], grader)
        kept |= dict(zip(stale, graded, strict=True))
    for problem in stored.problems:
        go_around(problem, "its episode is rolled out again")
    if stale or stored.problems or len(kept) < len(stored.episodes):
        write_episodes(path, [kept[index] for index in sorted(kept)], environment=spec.name, note=note)
    return kept


def _graded_by(episode: Episode, grader: Grader) -> bool:
    """True if the stored reward is this grader's. All compositions share one name, so theirs are graded again."""
    composed = grader.name == OWN_GRADER or grader.name.endswith(WEIGHED)
    return episode.reward is not None and episode.reward.grader == grader.name and not composed
