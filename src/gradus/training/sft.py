"""Supervised fine-tuning on stored episodes: the loss is on what was said, never on what was read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from gradus.core import ConfigError, Episode, child_seed
from gradus.core.records import FAULTS
from gradus.policies.local.loading import LoadedModel, LoadedTokenizer
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.microbatches import MicroBatch
from gradus.training.data.sequences import Episodes, Samples, TrainingSample
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.prepare import prepare_model
from gradus.training.laws.lessons import (
    held_out_tasks,
    lesson_text,
    noise_again,
    order_of_lessons,
    plain_likelihood,
    turns_again,
)
from gradus.training.laws.runner import LawRunner, begun
from gradus.training.lesson_config import SftConfig
from gradus.training.lesson_model import LocalLessonModel
from gradus.training.lessons import Augmented, LessonLoss, LessonModel, LessonResult, Lessons, LessonTrainer
from gradus.training.run.options import RunOptions
from gradus.training.run.splits import store_splits, task_id
from gradus.training.tinker.lessons import ServedLessonModel
from gradus.training.tinker.weights import ServedTraining

PLAIN = SamplingConfig()  # SFT maximizes the likelihood under the model's own distribution


def train_sft(
    model: LoadedModel | ServedTraining | str | Path,
    episodes: Sequence[Episode],
    config: SftConfig,
    folder: Path | str,
    *,
    resume: bool = False,
    options: RunOptions | None = None,
) -> LessonResult:
    """Trains a model on what was said in ``episodes`` and writes metrics, checkpoints, ``best`` and ``final`` to ``folder``.

    ``best`` is the model with the lowest validation loss, the final one if nothing is held out. Resuming gives, bit for
    bit, what an unbroken run gives. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    options = options or RunOptions()
    source = model if isinstance(model, ServedTraining) else prepare_model(model, config)
    words = source.words if isinstance(source, ServedTraining) else source
    lessons = _SftLessons(config, words, *_hold_out(episodes, config))
    with begun(folder, config, options, resume=resume) as run_folder:
        store_splits(run_folder, {"teach": lessons.taught, "validation": set(map(task_id, lessons.validation))})
        trainer = LessonTrainer(_lesson_model(source, config), config, run_folder, lessons)
        return trainer.run(options, resume=resume)


def _lesson_model(source: LoadedModel | ServedTraining, config: SftConfig) -> LessonModel:
    if isinstance(source, ServedTraining):
        return ServedLessonModel(source, config)
    learn, plain = partial(likelihood, source), partial(plain_likelihood, source)
    return LocalLessonModel(source, config, learn, plain)


def _hold_out(episodes: Episodes, config: SftConfig) -> tuple[list[Episode], list[Episode]]:
    """Splits off the episodes of some tasks by a shuffle that depends on the seed alone."""
    usable = [episode for episode in episodes if episode.stop not in FAULTS]
    tasks = list(dict.fromkeys(task_id(episode) for episode in usable))
    count = round(config.validation_share * len(tasks))
    if count >= len(tasks):
        raise ConfigError(f"nothing is left to train on: {len(tasks)} tasks with usable episodes, {count} held out")
    rng = np.random.default_rng(child_seed(config.seed, "sft", "validation"))
    order: list[int] = rng.permutation(len(tasks)).tolist()
    # By task, not by episode: several episodes may be of one task, and one that was learned would judge itself.
    held_out = {tasks[place] for place in order[:count]}
    training = [episode for episode in usable if task_id(episode) not in held_out]
    return training, [episode for episode in usable if task_id(episode) in held_out]


class _SftLessons(Lessons):
    """Passes over stored samples in an order that depends on seed and epoch alone."""

    kind = "sft"

    def __init__(
        self,
        config: SftConfig,
        words: LoadedTokenizer,
        training: Episodes,
        validation: Episodes,
    ) -> None:
        self._config, self._renderer = config, words.renderer
        self._training, self.validation = training, validation
        self.taught = set(map(task_id, training))
        self._samples = text_sequences(words, training)
        if config.observations and not any(len(sample.shown) for sample in self._samples):
            raise ConfigError(
                "observations is about what the environment shows after an answer, and these episodes have nothing after one; leave it out"
            )
        # Samples of one episode stand together, in the order of episodes.
        self._episodes = [list(samples) for _, samples in groupby(self._samples, attrgetter("episode"))]
        self._augmented = Augmented(config, self._samples)
        if validation:
            held_out = enumerate(text_sequences(words, validation))
            # Read with noise too, so that the loss is of what is trained.
            self.held_out = [self._augmented.noisy(sample, "check", number) for number, sample in held_out]
        self.validation_every = math.ceil(len(self._episodes) / config.batch_size)  # once an epoch
        self.patience = config.patience
        self.steps = config.epochs * self.validation_every
        if config.max_steps is not None:
            self.steps = min(self.steps, config.max_steps)

    def epoch(self, step: int) -> int:
        """Says which pass over the episodes a step belongs to."""
        return (step - 1) // self.validation_every + 1

    def batch(self, step: int) -> list[TrainingSample]:
        """The samples of the step's episodes."""
        epoch, batch = divmod(step - 1, self.validation_every)
        rng = np.random.default_rng(child_seed(self._config.seed, "sft", "epoch", epoch))
        order: list[int] = rng.permutation(len(self._episodes)).tolist()
        start = batch * self._config.batch_size
        places = order[start : start + self._config.batch_size]
        samples = [sample for place in places for sample in self._episodes[place]]
        return self._augmented.batch(samples, epoch, batch)

    def check(self, laws: LawRunner, step: int, samples: Samples) -> None:
        """Holds the text of a step to the episodes, and, at the first, the order of two epochs. Raises LawBroken."""
        if step == 1:
            laws.check("tasks", held_out_tasks, self._training, self.validation, self._config.validation_share)
            steps = self.validation_every
            laws.check("tasks", order_of_lessons, self.batch, self.epoch, steps, self._samples, self._training)
            laws.check("text", lesson_text, self._renderer, self.validation, self.held_out, self._config, None)
        place = divmod(step - 1, self.validation_every)
        turns = turns_again(self._config, *place)
        laws.check("text", lesson_text, self._renderer, self._training, samples, self._config, turns)
        if self._config.history_noise:
            laws.check("text", noise_again, samples, self._samples, self._config.history_noise)


def likelihood(loaded: LoadedModel, batch: MicroBatch, *, read: bool = False) -> LessonLoss:
    """Returns the negative log-likelihood of the answers in a microbatch."""
    scores = score_tokens(loaded.model, batch, PLAIN, greedy=True, read=read)
    assert scores.greedy is not None
    return LessonLoss(
        loss=-scores.logprobs.sum(),
        right=float(scores.greedy.sum()),
        read=None if scores.read is None else scores.read.sum(),
    )
