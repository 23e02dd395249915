"""Distillation: the student learns its teacher's distribution of each token, on histories of its own or of the teacher's.

Read from top to bottom; the loop is the one of SFT (``lessons``), what a teacher is stands in ``teachers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gradus.algorithms.distillation import find_divergence, on_named_words
from gradus.core import EnvironmentSpec, Episode, StopReason, Task
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import roll_out
from gradus.training.data.microbatches import MicroBatch
from gradus.training.data.sequences import TrainingSample, episode_samples
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.data.tasks import taught_indices
from gradus.training.distributed.processes import world
from gradus.training.engine.forward import compare_tokens
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.tree_support import tree_attention
from gradus.training.lesson_config import DistillConfig
from gradus.training.lessons import Augmented, Learned, LessonResult, LessonTrainer, take_lessons, turns_of
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import RunOptions
from gradus.training.run.splits import store_splits
from gradus.training.teachers import Teacher


def train_distill(
    loaded: LoadedModel,
    teacher: Teacher,
    spec: EnvironmentSpec,
    config: DistillConfig,
    folder: Path | str,
    *,
    sampling: SamplingConfig,
    reserved: frozenset[str] = frozenset(),
    resume: bool = False,
    options: RunOptions | None = None,
) -> LessonResult:
    """Teach a prepared model in an environment and write metrics, checkpoints, ``best`` and ``final`` to ``folder``.

    ``sampling``: how the student rolls out. ``reserved``: ids of the tasks that judge it later. Resuming gives, bit for bit on a CPU, what
    an unbroken run gives.
    """
    options = options or RunOptions()
    run_folder = RunFolder(folder, writing=world().main, observer=options.on_record)
    run_folder.open(config, resume=resume)
    try:
        lessons = _DistillLessons(loaded, teacher, spec, config, sampling, reserved)
        store_splits(run_folder, {"teach": {spec.identify(task).id for task in lessons.tasks}})
        return take_lessons(LessonTrainer(loaded, config, run_folder, lessons), options, resume=resume)
    except Exception:
        run_folder.forget_beginning()
        raise


class _DistillLessons:
    """Episodes that the student or the teacher rolls out, step by step, and the divergence on each token that was said there.

    Every step has tasks of its own, so a resumed run meets those of an unbroken one.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        teacher: Teacher,
        spec: EnvironmentSpec,
        config: DistillConfig,
        sampling: SamplingConfig,
        reserved: frozenset[str],
    ) -> None:
        self._loaded, self._teacher, self._spec, self._config = loaded, teacher, spec, config
        self.steps = self.validation_every = config.max_steps
        self._own = round(config.on_policy * config.batch_size)  # episodes of a step that the student rolls out
        count = config.max_steps * config.batch_size
        self.tasks = [spec.train_task(config.first_task + index) for index in taught_indices(spec, count, reserved)]
        self._student = LocalPolicy(loaded, sampling, name="student", grammar=spec.language.grammar)
        self._divergence = find_divergence(config.divergence)

    @property
    def kind(self) -> Literal["distill"]:
        return "distill"

    def epoch(self, step: int) -> int:
        return 1

    def checks(self) -> list[TrainingSample]:
        return []

    def batch(self, step: int) -> list[TrainingSample]:
        size = self._config.batch_size
        first, others, turns = (step - 1) * size, size - self._own, turns_of(self._config, step)
        tasks = self.tasks[first : first + size]
        samples = self._rolled_out(tasks[:others], first, own=False, turns=turns)
        samples += self._rolled_out(tasks[others:], first + others, own=True, turns=turns)
        samples = [replace(one, episode=number) for number, one in enumerate(samples) if one.actions]
        if not samples:
            raise TrainingError(
                f"in step {step} nothing was said that the teacher has a distribution of: its answers begin otherwise than the student's"
            )
        return Augmented.like(self._config, samples).batch(samples, step)

    def learn(self, batch: MicroBatch, *, read: bool = False) -> Learned:
        """The divergence on a microbatch."""
        soft, model = batch.labels.soft, None if self._teacher.model is None else self._teacher.model.model

        def compare(logits: Tensor, taught: Tensor | None, rows: slice) -> Tensor:
            student = logits.float().log_softmax(-1)
            if taught is None:
                assert soft is not None
                ids, chances = soft[0][rows], soft[1][rows]
                best = ids.gather(1, chances.argmax(1, keepdim=True))[:, 0]
                values = on_named_words(self._divergence, student, ids, chances)
            else:
                teacher = taught.float().log_softmax(-1)
                best = teacher.argmax(1)
                values = self._divergence(student, teacher)
            return torch.stack([values, (student.detach().argmax(1) == best).to(values.dtype)], 1)

        with nullcontext() if model is None else tree_attention(model):
            compared, shown = compare_tokens(self._loaded.model, batch, compare, teacher=model, read=read)
        loss, right = compared.sum(0)
        return Learned(loss=loss, right=float(right.detach()), read=None if shown is None else shown.sum())

    def _rolled_out(
        self, tasks: Sequence[Task], first: int, *, own: bool, turns: int | None = None
    ) -> list[TrainingSample]:
        """The samples of the tasks' episodes of at most ``turns``, with targets; none of one that failed."""
        if not tasks:
            return []
        actor = self._student if own else self._teacher.actor()
        key = ("distill", "own" if own else "taught")
        turns = min(turns or self._spec.max_turns, self._spec.max_turns)
        episodes = roll_out(
            self._spec, actor, tasks, seed=self._config.seed, key=key, first_group=first, max_turns=turns
        ).episodes
        usable = [number for number, episode in enumerate(episodes) if episode.stop is not StopReason.FAILED]
        samples = [one for number in usable for one in _samples(self._loaded, episodes[number], number)]
        return self._teacher.label(samples, episodes)


def _samples(loaded: LoadedModel, episode: Episode, number: int) -> list[TrainingSample]:
    """The tokens as they were sampled, or those of a script's text."""
    if episode.turns and episode.turns[0].tokens is not None:
        return [replace(one, key=(0, 0), legal=None) for one in episode_samples(episode, index=number)]
    return [replace(one, episode=number) for one in text_sequences(loaded, [episode])]
