"""Distillation: the student learns its teacher's distribution of each token, on histories of its own or of the teacher's.

Read from top to bottom; the loop is the one of SFT (``lessons``), what a teacher is stands in ``teachers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from gradus.algorithms.distillation import find_divergence, on_named_words
from gradus.core import AnswerDistribution, ConfigError, EnvironmentSpec, Episode, Group, StopReason, Task
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import episodes_of, roll_out
from gradus.training.data.microbatches import MicroBatch
from gradus.training.data.sequences import Samples, TrainingSample, episode_samples
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.data.tasks import distillation_tasks
from gradus.training.engine.forward import compare_tokens
from gradus.training.engine.loss_step import TrainingError
from gradus.training.engine.tree_support import tree_attention
from gradus.training.laws.lessons import (
    noise_again,
    plain_divergence,
    rolled_again,
    said_again,
    stated_again,
    turns_again,
)
from gradus.training.laws.rolled import RolledOut
from gradus.training.laws.runner import LawRunner, begun
from gradus.training.laws.step import is_exact
from gradus.training.laws.tasks import usable_again
from gradus.training.lesson_config import DistillConfig
from gradus.training.lesson_model import LocalLessonModel
from gradus.training.lessons import Augmented, LessonLoss, LessonResult, Lessons, LessonTrainer, turns_of
from gradus.training.run.options import RunOptions
from gradus.training.run.splits import store_splits
from gradus.training.teachers import ScriptedTeacher, Teacher

_STATED = 4  # samples of a step whose targets are computed again


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
    """Teaches a prepared model in an environment and writes metrics, checkpoints, ``best`` and ``final`` to ``folder``.

    ``sampling``: how the student rolls out; its temperature is that of both distributions. ``reserved``: ids of the tasks that judge it later. Resuming gives, bit for bit on a CPU, what
    an unbroken run gives.
    """
    if config.divergence == "reverse" and isinstance(teacher, ScriptedTeacher):
        raise ConfigError(
            f"distill.divergence = 'reverse' is infinite with the teacher {teacher.name}, which gives probability 0 to all but its answers; "
            "use 'forward' or 'jsd', or a model as the teacher"
        )
    options = options or RunOptions()
    with begun(folder, config, options, resume=resume) as run_folder:
        count = config.max_steps * config.batch_size
        tasks = distillation_tasks(spec, config, count, reserved)
        store_splits(run_folder, {"teach": {spec.identify(task).id for task in tasks}})
        student = LocalPolicy(loaded, sampling, name="student", grammar=spec.language.grammar)
        lessons = _DistillLessons(student, teacher, spec, config, tasks, reserved)
        temperature = student.sampling.temperature
        plain = partial(plain_divergence, loaded, teacher.model, config.divergence, temperature)
        taught = LocalLessonModel(loaded, config, lessons.learn, plain)
        return LessonTrainer(taught, config, run_folder, lessons).run(options, resume=resume)


class _DistillLessons(Lessons):
    """Episodes that the student or the teacher rolls out, step by step, and the divergence on each token that was said there.

    Every step has tasks of its own, so a resumed run meets those of an unbroken one.
    """

    kind = "distill"

    def __init__(
        self,
        student: LocalPolicy,
        teacher: Teacher,
        spec: EnvironmentSpec,
        config: DistillConfig,
        tasks: Sequence[Task],
        reserved: frozenset[str],
    ) -> None:
        self._student, self._teacher = student, teacher
        self._reserved = reserved
        self._spec, self._config, self._tasks = spec, config, tasks
        self.steps = config.max_steps
        self._temperature = student.sampling.temperature
        self._divergence = find_divergence(config.divergence)
        self._groups: list[Group] = []  # of the step that was made last
        self._by_teacher = 0  # so many of them are the teacher's
        self._labelled: list[
            tuple[Episode, TrainingSample, Sequence[AnswerDistribution]]
        ] = []  # of each of its samples
        self.taught = {spec.identify(task).id for task in tasks}

    def batch(self, step: int) -> list[TrainingSample]:
        """The samples of the step's episodes: first those of the teacher, then those of the student."""
        size = self._config.batch_size
        first = (step - 1) * size
        tasks = self._tasks[first : first + size]
        self._groups.clear()
        self._labelled.clear()
        by_teacher = size - round(self._config.on_policy * size)
        self._by_teacher = by_teacher
        turns = turns_of(self._config, step) or self._spec.max_turns
        samples = self._roll_out(tasks[:by_teacher], first, turns, by_student=False)
        samples += self._roll_out(tasks[by_teacher:], first + by_teacher, turns, by_student=True)
        samples = [sample for sample in samples if sample.actions]
        if not samples:
            raise TrainingError(
                f"in step {step} nothing was said that the teacher has a distribution of: its answers begin otherwise than the student's"
            )
        # Both rollouts number their episodes from 0.
        samples = [replace(sample, episode=number) for number, sample in enumerate(samples)]
        return Augmented(self._config, samples).batch(samples, step)

    def check(self, laws: LawRunner, step: int, samples: Samples) -> None:
        """Holds the tasks of the step that was made last to the order of all. Raises LawBroken."""
        student, spec, config = self._student, self._spec, self._config
        limit, renderer = spec.max_turns, student.loaded.renderer
        walked = usable_again(spec, config, self._reserved)
        tasks = list(islice(walked, config.batch_size * (step - 1), config.batch_size * step))
        laws.check("tasks", rolled_again, tasks, episodes_of(self._groups), config, step, student.name, limit)
        RolledOut(
            spec=spec,
            sampling=student.sampling,
            seed=config.seed,
            key=("distill", "own"),
            size=1,
            limit=min(turns_again(config, step) or limit, limit),
            renderer=renderer,
            loaded=student.loaded,
            exact=is_exact(student.loaded, config),
            first=config.batch_size * (step - 1) + self._by_teacher,
        ).check(laws, self._groups[self._by_teacher :])
        # Turns that ask the same have the same targets, whichever they are taken from: one sample may not show it.
        for episode, sample, stated in self._labelled[-_STATED:]:
            laws.check("tokens", said_again, renderer, episode, sample, self._config)
            if stated:
                laws.check("credit", stated_again, renderer, sample, stated)
        if self._config.history_noise:
            laws.check("text", noise_again, samples, samples, self._config.history_noise)

    def _roll_out(
        self,
        tasks: Sequence[Task],
        first: int,
        turns: int,
        *,
        by_student: bool,
    ) -> list[TrainingSample]:
        """The samples of the tasks' episodes of at most ``turns``, with targets; none of one that failed."""
        if not tasks:
            return []
        result = roll_out(
            self._spec,
            self._student if by_student else self._teacher.actor(),
            tasks,
            seed=self._config.seed,
            key=("distill", "own" if by_student else "taught"),
            first_group=first,
            max_turns=min(turns, self._spec.max_turns),
        )
        episodes = result.episodes
        samples: list[TrainingSample] = []
        for number, episode in enumerate(episodes):
            if episode.stop is not StopReason.FAILED:
                samples += _samples(self._student.loaded, episode, number)
        self._groups += result.groups
        labelled = self._teacher.label(samples, episodes)
        stated = self._teacher.stated if isinstance(self._teacher, ScriptedTeacher) else [()] * len(episodes)
        for made, sample in zip(samples, labelled, strict=True):
            # By the tokens of the sample as it was made: a label must not change them.
            self._labelled.append((episodes[made.episode], sample, stated[sample.episode]))
        return labelled

    def learn(self, batch: MicroBatch, *, read: bool = False) -> LessonLoss:
        """The divergence on a microbatch."""
        soft = batch.labels.soft

        def compare(logits: Tensor, taught: Tensor | None, rows: slice) -> Tensor:
            """(A, 2): the divergence, and whether the student's likeliest token is the teacher's."""
            student = (logits.float() / self._temperature).log_softmax(-1)
            if taught is not None:
                teacher = (taught.float() / self._temperature).log_softmax(-1)
                best = teacher.argmax(1)
                values = self._divergence(student, teacher)
            else:
                assert soft is not None
                ids, chances = soft[0][rows], soft[1][rows]
                best = ids.gather(1, chances.argmax(1, keepdim=True))[:, 0]
                values = on_named_words(self._divergence, student, ids, chances)
            return torch.stack([values, (student.detach().argmax(1) == best).to(values.dtype)], 1)

        teacher = self._teacher.model
        model = None if teacher is None else teacher.model
        # The student's own attention by tree is on during the whole update.
        with nullcontext() if model is None else tree_attention(model):
            compared, shown = compare_tokens(
                self._student.loaded.model,
                batch,
                compare,
                teacher=model,
                read=read,
            )
        loss, right = compared.sum(0)
        return LessonLoss(loss=loss, right=float(right.detach()), read=None if shown is None else shown.sum())


def _samples(loaded: LoadedModel, episode: Episode, number: int) -> list[TrainingSample]:
    """The tokens as they were sampled, or those of a script's text."""
    if episode.turns and episode.turns[0].tokens is not None:
        samples = episode_samples(episode)
        return [replace(sample, key=(0, 0), legal=None, episode=number) for sample in samples]
    return [replace(sample, episode=number) for sample in text_sequences(loaded, [episode])]
