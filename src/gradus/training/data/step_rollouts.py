"""Rolling out the groups of a step, each process its share of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradus.core import EnvironmentSpec, Grader, Group, Policy
from gradus.rollouts import MAX_CONCURRENT, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import training_tasks
from gradus.training.distributed.processes import gather, share
from gradus.training.engine.loss_step import TrainingError
from gradus.training.run.step_metrics import has_zero_variance

__all__ = ["StepRollout", "roll_out_step"]


@dataclass(frozen=True, kw_only=True)
class StepRollout:
    """The groups of a step, the first place in the order of tasks that is still unused, and this process's seconds by phase."""

    groups: Sequence[Group]
    next_task: int
    seconds: Mapping[str, float]


def roll_out_step(
    spec: EnvironmentSpec,
    policy: Policy,
    config: GrpoConfig,
    grader: Grader,
    *,
    step: int,
    next_task: int,
    reserved: frozenset[str],
    progress: Callable[[int, int], None] | None = None,
) -> StepRollout:
    """Roll out ``config.groups`` groups. With dynamic sampling, zero-variance groups are replaced in further rounds.

    Raises TrainingError if not one episode could be graded.
    """
    groups: list[Group] = []
    seconds = {"policy": 0.0, "environment": 0.0, "reward": 0.0}
    for attempt in range(config.dynamic_sampling + 1):
        tasks, next_task = training_tasks(spec, config, next_task, config.groups - len(groups), reserved)
        mine = share(len(tasks))
        result = roll_out(
            spec,
            policy,
            tasks[mine.start : mine.stop],
            first_group=mine.start,
            group_size=config.group_size,
            seed=config.seed,
            key=("step", step, attempt),
            grader=grader,
            max_turns=config.max_turns,
            # Episodes that are played to their end before others begin need no turns in the sampler's cache.
            max_concurrent=max(config.group_size, config.batch_size or MAX_CONCURRENT),
            progress=progress,
        )
        for name in seconds:
            seconds[name] += result.seconds[name]
        last = attempt == config.dynamic_sampling
        groups.extend(group for group in gather(result.groups) if last or not has_zero_variance(group))
        if len(groups) == config.groups:
            break
    _check_graded(groups)
    return StepRollout(groups=groups, next_task=next_task, seconds=seconds)


def _check_graded(groups: Sequence[Group]) -> None:
    """A step in which nothing could be graded has nothing to learn from, and says why."""
    episodes = [episode for group in groups for episode in group.episodes]
    if any(episode.reward is not None and episode.reward.value is not None for episode in episodes):
        return
    for episode in episodes:
        if episode.failure is not None:
            raise TrainingError(
                f"all {len(episodes)} episodes failed; the first at stage {episode.failure.stage}: "
                f"{episode.failure.type}: {episode.failure.message}"
            )
    error = next((episode.reward.error for episode in episodes if episode.reward), None)
    raise TrainingError(f"none of the {len(episodes)} episodes could be graded: {error or 'no reason was given'}")
