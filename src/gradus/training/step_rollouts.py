"""The groups of each step. Each process rolls out its share of them."""

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

Progress = Callable[[float, int], None]


@dataclass(frozen=True, kw_only=True)
class StepRollout:
    """The groups of a step, the first place in the order of tasks that is still unused, and this process's seconds by phase.

    ``dropped``: groups that dynamic sampling replaced. They are not trained on, but count in what the step's metrics say of the policy.
    """

    groups: Sequence[Group]
    dropped: Sequence[Group]
    next_task: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class StepRollouts:
    """Rolls out the groups of a run, step by step. ``reserved``: ids of the tasks that judge."""

    spec: EnvironmentSpec
    policy: Policy
    config: GrpoConfig
    reserved: frozenset[str]

    def roll_out(self, step: int, next_task: int, grader: Grader, progress: Progress | None = None) -> StepRollout:
        """Roll out ``groups`` groups. With dynamic sampling, zero-variance groups are replaced in further rounds.

        Raises TrainingError if not one episode could be graded.
        """
        config = self.config
        groups: list[Group] = []
        dropped: list[Group] = []
        seconds = {"policy": 0.0, "environment": 0.0, "reward": 0.0}
        for attempt in range(config.dynamic_sampling + 1):
            missing = config.groups - len(groups)
            tasks, next_task = training_tasks(self.spec, config, next_task, missing, self.reserved)
            mine = share(len(tasks))
            result = roll_out(
                self.spec,
                self.policy,
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
            for group in gather(result.groups):
                (groups if last or not has_zero_variance(group) else dropped).append(group)
            if len(groups) == config.groups:
                break
        _check_graded(groups)
        return StepRollout(groups=groups, dropped=dropped, next_task=next_task, seconds=seconds)


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
