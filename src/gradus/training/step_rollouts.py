"""The groups of each step: rolled out when they are asked for, or while the step before trains (``async_level = 1``).

Each process rolls out its share of them.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from gradus.core import ConfigError, EnvironmentSpec, Grader, Group, Policy, StorageError, Task
from gradus.core.files import read_json, write_text
from gradus.rollouts import MAX_CONCURRENT, grade_episodes, read_episodes, roll_out, write_episodes
from gradus.training.config import GrpoConfig
from gradus.training.data.difficulty import TaskDifficulty
from gradus.training.data.tasks import training_tasks
from gradus.training.distributed.processes import gather, share, world
from gradus.training.engine.loss_step import TrainingError
from gradus.training.run.step_metrics import has_zero_variance

Progress = Callable[[float, int], None]


EPISODES, SUMMARY = (
    "ahead.jsonl",
    "ahead.json",
)  # in a checkpoint: the next step's episodes, and what else is known of them


@dataclass(frozen=True, kw_only=True)
class StepRollout:
    """The groups of a step, the first place in the order of tasks that is still unused, and this process's seconds by phase.

    ``weights_step``: the step whose weights sampled them, 0 for those that the run began with. ``dropped``: groups that dynamic sampling
    replaced. They are not trained on, but count in what the step's metrics say of the policy.
    """

    groups: Sequence[Group]
    next_task: int
    seconds: Mapping[str, float]
    weights_step: int
    dropped: Sequence[Group] = ()

    def regraded(self, spec: EnvironmentSpec, grader: Grader) -> StepRollout:
        """The same under another grader."""

        def again(groups: Sequence[Group]) -> list[Group]:
            return [replace(each, episodes=tuple(grade_episodes(spec, each.episodes, grader))) for each in groups]

        return replace(self, groups=again(self.groups), dropped=again(self.dropped))

    def timed(self, **seconds: float) -> StepRollout:
        """The same with further seconds."""
        return replace(self, seconds={**self.seconds, **seconds})


class StepRollouts:
    """Rolls out the groups of a run, step by step.

    With ``async_level = 1`` the next step's are begun in a thread as soon as a step has its own, by the weights that the sampler
    has then. Whoever calls waits with :meth:`wait` before it brings new weights there, so that all tokens of a group come from the
    same weights. What is ready is part of a checkpoint: a resumed run trains on these very episodes.
    ``weights_step``: the step whose weights sample; the caller keeps it up to date.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        policy: Policy,
        config: GrpoConfig,
        reserved: frozenset[str],
    ) -> None:
        if config.async_level and world().size > 1:
            raise ConfigError(
                "async_level = 1 trains in one process; launch without accelerate, or set async_level = 0"
            )
        self._spec, self._policy, self._config, self._reserved = spec, policy, config, reserved
        by_difficulty = config.task_order == "difficulty"
        self._difficulty = TaskDifficulty(spec, config, reserved) if by_difficulty else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout", initializer=self._begun)
        self._thread_id: int | None = None
        self._next: Future[StepRollout] | None = None
        self.weights_step = 0

    def take(
        self, step: int, next_task: int, grader: Grader, *, scheduled: bool, progress: Progress | None = None
    ) -> StepRollout:
        """The groups of ``step``; the next step's are begun. Raises what rolling out raised.

        ``scheduled``: the grader changes from step to step, so that what was graded a step ahead is graded again.
        """
        if self._next is None:
            rollout = self.roll_out(step, next_task, grader, progress)
            if self._config.async_level:
                rollout = rollout.timed(waited=sum(rollout.seconds.values()), overlapped=0.0)
        else:
            rollout, self._next = self._next.result(), None
            rollout = rollout.regraded(self._spec, grader) if scheduled else rollout
        if self._difficulty is not None:  # before the next draw, which depends on it
            self._difficulty.observe(step, [*rollout.groups, *rollout.dropped])
        if self._config.async_level and step < self._config.max_steps:
            self._next = self._thread.submit(self.roll_out, step + 1, rollout.next_task, grader)
        return rollout

    @property
    def drawn(self) -> Iterable[str]:
        """Ids of the tasks that were drawn by difficulty and trained on."""
        return () if self._difficulty is None else self._difficulty.seen

    def wait(self) -> None:
        """Wait for what was begun. What it raised is raised by :meth:`take`."""
        if self._next is None:
            return
        before = time.perf_counter()
        wait((self._next,))
        waited = time.perf_counter() - before
        if self._next.exception() is None:
            rollout = self._next.result()
            overlapped = max(0.0, sum(rollout.seconds.values()) - waited)
            self._put(rollout.timed(waited=waited, overlapped=overlapped))

    def close(self) -> None:
        """End the thread. A rollout that is under way ends as Ctrl-C ends one: nobody takes it, and it may last for minutes."""
        if self._thread_id is not None and self._next is not None and self._next.running():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread_id), ctypes.py_object(KeyboardInterrupt)
            )
        self._thread.shutdown(cancel_futures=True)

    def _begun(self) -> None:
        self._thread_id = threading.get_ident()

    def save(self, folder: Path) -> None:
        """Write what is ready, and what is known of tasks, to the folder of a checkpoint; nothing if there is nothing."""
        if self._difficulty is not None:
            self._difficulty.save(folder)
        if self._next is None or self._next.exception() is not None:
            return
        rollout = self._next.result()
        groups = [*rollout.groups, *rollout.dropped]
        episodes = [episode for group in groups for episode in group.episodes]
        write_episodes(folder / EPISODES, episodes, environment=self._spec.name)
        summary = {
            "next_task": rollout.next_task,
            "weights_step": rollout.weights_step,
            "seconds": dict(rollout.seconds),
            "group_sizes": [len(group.episodes) for group in groups],
            "dropped": len(rollout.dropped),
        }
        write_text(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def load(self, folder: Path) -> None:
        """Have ready what :meth:`save` wrote, if it wrote anything. Raises StorageError if it cannot be read whole."""
        if self._difficulty is not None:
            self._difficulty.load(folder)
        if not (folder / SUMMARY).exists():
            return
        summary, stored = read_json(folder / SUMMARY), read_episodes(folder / EPISODES)
        if stored.problems or len(stored.episodes) != sum(summary["group_sizes"]):
            reason = stored.problems[0] if stored.problems else f"{len(stored.episodes)} episodes are there"
            raise StorageError(
                f"the next step's episodes in {folder} are damaged: {reason}; remove that folder to go on from an earlier one"
            )
        episodes = iter(stored.episodes)
        members = [tuple(next(episodes) for _ in range(size)) for size in summary["group_sizes"]]
        groups = [Group(task=each[0].task, episodes=each) for each in members]
        kept = len(groups) - summary.get("dropped", 0)
        self._put(
            StepRollout(
                groups=groups[:kept],
                dropped=groups[kept:],
                next_task=summary["next_task"],
                seconds=summary["seconds"],
                weights_step=summary["weights_step"],
            )
        )

    def roll_out(self, step: int, next_task: int, grader: Grader, progress: Progress | None = None) -> StepRollout:
        """Roll out ``groups`` groups. With dynamic sampling, zero-variance groups are replaced in further rounds.

        Raises TrainingError if not one episode could be graded.
        """
        config = self._config
        groups: list[Group] = []
        dropped: list[Group] = []
        seconds = {"policy": 0.0, "environment": 0.0, "reward": 0.0}
        for attempt in range(config.dynamic_sampling + 1):
            tasks, next_task = self._tasks(step, attempt, next_task, [*groups, *dropped])
            mine = share(len(tasks))
            result = roll_out(
                self._spec,
                self._policy,
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
        return StepRollout(
            groups=groups, next_task=next_task, seconds=seconds, weights_step=self.weights_step, dropped=dropped
        )

    def _tasks(
        self, step: int, attempt: int, next_task: int, rolled_out: Sequence[Group]
    ) -> tuple[Sequence[Task], int]:
        """The tasks of a round, as many as groups are missing, and the first place in the run's order after them."""
        missing = self._config.groups - sum(not has_zero_variance(group) for group in rolled_out)
        if self._difficulty is None:
            return training_tasks(self._spec, self._config, next_task, missing, self._reserved)
        taken = {group.task.id for group in rolled_out}
        return self._difficulty.draw(step, attempt, missing, taken), next_task

    def _put(self, rollout: StepRollout) -> None:
        self._next = Future()
        self._next.set_result(rollout)


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
