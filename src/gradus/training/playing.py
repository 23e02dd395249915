"""Playing the groups of a step, each process its share of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradus.core import EnvironmentSpec, Grader, Group, Policy
from gradus.rollouts import play
from gradus.training.distributed import gather, share
from gradus.training.grpo_config import GrpoConfig
from gradus.training.step_metrics import dead_group
from gradus.training.tasks import training_tasks
from gradus.training.trainer import TrainingError

__all__ = ["Played", "play_groups"]


@dataclass(frozen=True, kw_only=True)
class Played:
    """The groups of a step, the first training task that is still unused, and this process's seconds by phase."""

    groups: Sequence[Group]
    next_task: int
    seconds: Mapping[str, float]


def play_groups(
    spec: EnvironmentSpec,
    policy: Policy,
    config: GrpoConfig,
    grader: Grader,
    *,
    step: int,
    next_task: int,
    progress: Callable[[int, int], None] | None = None,
) -> Played:
    """Play ``config.groups`` groups. With dynamic sampling, those without signal are replaced in further rounds.

    Raises TrainingError if not one episode could be graded.
    """
    groups: list[Group] = []
    seconds = {"play": 0.0, "environment": 0.0, "grade": 0.0}
    for attempt in range(config.dynamic_sampling + 1):
        missing = config.groups - len(groups)
        tasks = training_tasks(spec, config, next_task, missing)
        next_task += missing
        mine = share(len(tasks))
        result = play(
            spec,
            policy,
            tasks[mine.start : mine.stop],
            first_group=mine.start,
            group_size=config.group_size,
            seed=config.seed,
            key=("step", step, attempt),
            grader=grader,
            max_turns=config.max_turns,
            progress=progress,
        )
        for name in seconds:
            seconds[name] += result.seconds[name]
        last = attempt == config.dynamic_sampling
        groups.extend(group for group in gather(result.groups) if last or not dead_group(group))
        if len(groups) == config.groups:
            break
    _check_played(groups)
    return Played(groups=groups, next_task=next_task, seconds=seconds)


def _check_played(groups: Sequence[Group]) -> None:
    """A step in which nothing could be graded has nothing to learn from, and says why."""
    episodes = [episode for group in groups for episode in group.episodes]
    if any(episode.grade is not None and episode.grade.value is not None for episode in episodes):
        return
    for episode in episodes:
        if episode.failure is not None:
            raise TrainingError(
                f"all {len(episodes)} episodes failed; the first at stage {episode.failure.stage}: "
                f"{episode.failure.type}: {episode.failure.message}"
            )
    error = next((episode.grade.error for episode in episodes if episode.grade), None)
    raise TrainingError(f"none of the {len(episodes)} episodes could be graded: {error or 'no reason was given'}")
