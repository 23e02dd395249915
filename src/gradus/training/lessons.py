"""The loop that SFT and distillation share: samples of a step, a loss for each of their tokens, an update, a record, a checkpoint."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_rng, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.metrics import SftRecord
from gradus.training.data.sequences import Samples, TrainingSample, ints
from gradus.training.distributed.processes import any_of, barrier, world
from gradus.training.engine.optimizers import lr_at
from gradus.training.laws.lessons import lowest_again
from gradus.training.laws.movement import scheduled_rate
from gradus.training.laws.runner import LawRunner
from gradus.training.laws.storing import check_checkpoint, line_again, splits_again
from gradus.training.lesson_config import LessonConfig
from gradus.training.run.checkpoints import Checkpoint, TrainingState, go_back, loop_values, save_checkpoint
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import Interrupt, Screen
from gradus.training.run.options import RunOptions

AnswerPools = Mapping[int, Tensor]
_LEAST_FALL = 0.01  # nats a token: about one sampled token in a hundred
_LAST = ("loss", "validation_loss", "validation_accuracy")
FIGURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "validation loss": "validation_loss",
    "validation accuracy": "validation_accuracy",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
}


@frozen_record
class LessonLoss:
    """Sums over the tokens of a microbatch.

    ``loss``: with gradient. ``right``: tokens that are the target's likeliest ones. ``read``: log-probs of what the environment showed, with
    gradient; None unless they are computed.
    """

    loss: Tensor
    right: float
    read: Tensor | None


class Lessons(ABC):
    """The samples that a model is taught at each step.

    ``taught``: ids of the tasks. ``held_out``: samples whose loss chooses the best weights. ``validation_every``: if the settings do not say.
    ``patience``: validations without a lower loss after which training ends; None for never.
    """

    kind: ClassVar[Literal["sft", "distill"]]  # of its records
    steps: int
    taught: set[str]
    held_out: Samples = ()
    validation_every: int = 0
    patience: int | None = None

    @abstractmethod
    def batch(self, step: int) -> list[TrainingSample]:
        """The samples of a step, 1 for the first; they depend on the step, the settings and the weights alone."""

    def epoch(self, step: int) -> int:
        """Says which pass over the lessons a step belongs to, 1 for the first; always the first if no task comes again."""
        return 1

    @abstractmethod
    def check(self, laws: LawRunner, step: int, samples: Samples) -> None:
        """Holds the ``samples`` of a step to what they were made of. Raises LawBroken."""


@frozen_record
class LessonResult:
    """The result of a run. ``best`` and ``final`` are model folders; losses are in nats per action token."""

    steps: int
    best: Path
    final: Path
    loss: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float


def answer_pools(samples: Samples) -> AnswerPools:
    """Place within an answer -> the token ids that were said there, each once. Noise is drawn from these."""
    offsets = torch.cat([sample.offsets for sample in samples])
    ids = torch.cat([sample.ids[sample.positions] for sample in samples])
    return {place: cast(Tensor, ids[offsets == place].unique()) for place in sorted(set(ints(offsets)))}


def with_history_noise(
    sample: TrainingSample,
    share: float,
    pools: AnswerPools,
    rng: np.random.Generator,
) -> TrainingSample:
    """Replaces ``share`` of the answer tokens that are read; what is learned at their places stays what it was.

    Only tokens that can be something else are touched, so a stop token that ends every answer stays.
    """
    ids = sample.ids.clone()
    noisy = torch.from_numpy(rng.random(sample.actions) < share)
    for place, pool in pools.items():
        tokens = (noisy & (sample.offsets == place)).nonzero()[:, 0]
        if len(pool) > 1 and len(tokens):
            ids[sample.positions[tokens]] = torch.from_numpy(rng.choice(pool.numpy(), size=len(tokens)))
    return replace(sample, ids=ids, targets=sample.learned_ids)


def short_turns(sample: TrainingSample, turns: int) -> TrainingSample:
    """The sample with only its first ``turns`` turns learned; what comes after them is not computed either."""
    return sample.only(sample.turns < sample.turns.min() + turns)


class Augmented:
    """Changes samples before they are learned, as the settings say: noise in the answers that are read, and fewer turns.

    Noise is drawn from the answers of ``samples``.
    """

    def __init__(self, config: LessonConfig, samples: Samples) -> None:
        self._config = config
        self._pools: AnswerPools = answer_pools(samples) if config.history_noise else {}

    def batch(self, samples: Samples, *key: int) -> list[TrainingSample]:
        """The samples of a step."""
        changed = [self.noisy(sample, *key, number) for number, sample in enumerate(samples)]
        turns = turns_of(self._config, *key)
        if turns is not None:
            changed = [short_turns(sample, turns) for sample in changed]
        return [sample for sample in changed if sample.actions]

    def noisy(self, sample: TrainingSample, *key: int | str) -> TrainingSample:
        """The sample with noise in the answers that are read, if the settings want it."""
        if not self._config.history_noise:
            return sample
        rng = np.random.default_rng(child_seed(self._config.seed, "sft", "noise", *key))
        return with_history_noise(sample, self._config.history_noise, self._pools, rng)


def turns_of(config: LessonConfig, *key: int) -> int | None:
    """Returns how many turns of its episodes a step learns; None for all."""
    coin = child_rng(config.seed, "sft", "short", *key).random()
    return config.short_turns if coin < config.short_turns_share else None


@dataclass
class LessonState:
    """The state of a run in a checkpoint, besides weights and optimizer.

    ``stalled``: validations in a row that lowered the held-out loss by too little. ``last``: figures of the last step that had them.
    """

    step: int = 0
    best: float | None = None
    stalled: int = 0
    last: dict[str, float | None] = field(default_factory=dict[str, float | None])


@frozen_record
class StepSums:
    """The sums of a step over all processes. ``right``: tokens that were the likeliest ones, and ``norm``: of the gradient; None if not measured.

    ``computed``: tokens that went through the model.
    """

    loss: float
    right: float | None
    computed: int
    norm: float | None


class LessonModel(Protocol):
    """What the loop needs of a model, wherever its weights are."""

    @property
    def state(self) -> TrainingState:
        """Weights and optimizer, as checkpoints store and restore them."""
        ...

    def update(self, samples: Samples, lr: float, laws: LawRunner | None = None) -> StepSums:
        """Takes the optimizer update of a step."""
        ...

    def measure(self, samples: Samples, laws: LawRunner | None = None) -> HeldOutFigures:
        """Loss and accuracy on samples that are not trained."""
        ...

    def save(self, folder: Path, laws: LawRunner) -> None:
        """Writes the weights as they are to a model folder, which ``laws`` look at."""


@frozen_record
class HeldOutFigures:
    """Means over tokens; ``accuracy`` is None if it was not measured."""

    loss: float
    accuracy: float | None


class LessonTrainer:
    """The loop: a model, and what changes while it goes on."""

    def __init__(self, model: LessonModel, config: LessonConfig, folder: RunFolder, lessons: Lessons) -> None:
        self.model, self.config, self.folder, self.lessons = model, config, folder, lessons
        self.state = LessonState()
        self.laws = LawRunner(config.laws.off)

    def run(self, options: RunOptions, *, resume: bool) -> LessonResult:
        """Takes all steps that remain, shows them, and writes ``best`` and ``final``."""
        if resume:
            self.restore()
        started = time.perf_counter()
        screen = Screen(
            self.lessons.kind,
            steps=self.lessons.steps,
            figures=FIGURES,
            done=self.state.step,
            live=options.live and world().main,
        )
        with screen, Interrupt(options.stop) as interrupt:
            for record in self.train(interrupt):
                screen.step(record)
                if options.on_step is not None:
                    options.on_step(record)
        self.save("final")
        if self.state.best is None:  # nothing was held out
            self.save("best")
        if self.folder.writing:
            self.laws.check("records", lowest_again, self.folder.metrics, self.state.best)
            self.laws.check("records", splits_again, self.folder.path, {"teach": self.lessons.taught})
        barrier()
        last = self.state.last
        return LessonResult(
            steps=self.state.step,
            best=self.folder.path / "best",
            final=self.folder.path / "final",
            loss=last.get("loss"),
            validation_loss=last.get("validation_loss"),
            validation_accuracy=last.get("validation_accuracy"),
            seconds=time.perf_counter() - started,
        )

    @property
    def has_stalled(self) -> bool:
        """Says if the held-out loss falls no more, or can fall no more, so that further steps would only cost time."""
        if self.lessons.patience is None or self.state.best is None:
            return False
        return self.state.stalled >= self.lessons.patience or self.state.best < _LEAST_FALL

    def train(self, interrupt: Interrupt) -> Iterator[SftRecord]:
        """Takes the remaining steps; yields one metrics record a step. Raises KeyboardInterrupt behind a checkpoint."""
        state = self.state
        while state.step < self.lessons.steps and not self.has_stalled:
            record = self._step(state.step + 1)
            state.step += 1
            figures: dict[str, Any] = {**record}
            state.last |= {name: figures[name] for name in _LAST if name in figures}
            self.folder.append(record)
            if self.laws.due and self.folder.writing:
                self.laws.check("records", line_again, self.folder.metrics, record)
            last = state.step == self.lessons.steps or self.has_stalled
            # One process's Ctrl-C ends all of them, behind the same checkpoint.
            due = state.step % self.config.checkpoint_every == 0 or last
            interrupted = any_of(interrupt.requested)
            if due or interrupted:
                self.checkpoint()
            if interrupted:
                raise KeyboardInterrupt
            yield record

    def _step(self, step: int) -> SftRecord:
        started = time.perf_counter()
        samples = self.lessons.batch(step)
        n_tokens = sum(sample.actions for sample in samples)
        lr = lr_at(self.config, step, self.lessons.steps)
        self.laws.step = step
        if self.laws.due:
            self.laws.check("optimizer", scheduled_rate, self.config, self.lessons.steps, step, lr)
            self.lessons.check(self.laws, step, samples)
        sums = self.model.update(samples, lr, self.laws)
        seconds = time.perf_counter() - started
        record: SftRecord = {
            "kind": self.lessons.kind,
            "step": step,
            "epoch": self.lessons.epoch(step),
            "loss": sums.loss,
            "accuracy": None if sums.right is None else sums.right / n_tokens,
            "grad_norm": sums.norm,
            "lr": lr,
            "tokens": sums.computed,
            "seconds": seconds,
            "tokens_per_second": sums.computed / seconds,
        }
        interval = self.config.validation_every
        if interval is None:
            interval = self.lessons.validation_every
        if self.lessons.held_out and interval and (step % interval == 0 or step == self.lessons.steps):
            record["validation_loss"], record["validation_accuracy"] = self._validate()
        return record

    def _validate(self) -> tuple[float, float | None]:
        """Loss and accuracy on what is held out; keeps the weights if they are the best so far."""
        state = self.state
        # The law looks at the first validation alone: later ones are computed in the same way.
        figures = self.model.measure(self.lessons.held_out, self.laws if state.best is None else None)
        # Patience asks for a fall that matters; the best weights are those of the lowest loss, by however little.
        falls = state.best is None or figures.loss <= state.best - _LEAST_FALL
        state.stalled = 0 if falls else state.stalled + 1
        if state.best is None or figures.loss < state.best:
            state.best = figures.loss
            self.save("best")
        return figures.loss, figures.accuracy

    def checkpoint(self) -> None:
        """Writes down where the run stands."""
        checkpoint = Checkpoint(step=self.state.step, offset=self.folder.offset(), state=loop_values(self.state))
        save_checkpoint(self.folder.path, checkpoint, self.model.state)
        self.check_checkpoint(self.config.checkpoint_every)

    def check_checkpoint(self, every: int = 0) -> None:
        """Holds the newest checkpoint to the run in memory; of those of ``every`` so many steps some as a whole. Raises LawBroken."""
        state = loop_values(self.state)
        check_checkpoint(self.laws, self.folder.path, self.model.state, self.state.step, state, every)

    def restore(self) -> None:
        """Goes back to the newest checkpoint; without one to the beginning."""
        checkpoint = go_back(self.folder, self.model.state)
        if checkpoint is not None:
            self.state = LessonState(step=checkpoint.step, **checkpoint.state)
            self.check_checkpoint()

    def save(self, name: str) -> None:
        """Writes the weights as they are to a folder of the run."""
        self.model.save(self.folder.path / name, self.laws)
