"""The loop that SFT and distillation share: sequences of a step, a loss for each of their tokens, an update, a record, a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_rng, child_seed
from gradus.core.metrics import SftRecord
from gradus.policies.local.loading import LoadedModel
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import any_of, barrier, share, total, world
from gradus.training.engine.fsdp import is_sharded, shard
from gradus.training.engine.loss_step import PassBudget, apply_gradients, backward_passes
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.prepare import precision
from gradus.training.engine.tree_support import supports_tree
from gradus.training.lesson_config import LessonConfig
from gradus.training.run.checkpoints import Checkpoint, LocalState, go_back, save_checkpoint, save_model
from gradus.training.run.folder import RunFolder
from gradus.training.run.live_screen import Interrupt, Screen
from gradus.training.run.options import RunOptions

Pools = Mapping[int, Tensor]
FIGURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "validation loss": "validation_loss",
    "validation accuracy": "validation_accuracy",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
}


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Sums over the tokens of a microbatch, with gradient but for ``right``: the loss, how many tokens are the likeliest ones of the
    target, and the log-probs of what the environment showed (None unless asked for)."""

    loss: Tensor
    right: float
    read: Tensor | None


class Lessons(Protocol):
    """The sequences that a model is taught at each step, and the loss on them."""

    steps: int
    validation_every: int  # if the settings do not say

    @property
    def kind(self) -> Literal["sft", "distill"]:
        """The kind of its records."""
        ...

    def checks(self) -> list[TrainingSample]:
        """The sequences that are held out."""
        ...

    def batch(self, step: int) -> list[TrainingSample]:
        """The sequences of a step, 1 for the first; they depend on the step, the settings and the weights alone."""
        ...

    def epoch(self, step: int) -> int:
        """Says which pass over the lessons a step belongs to, 1 for the first."""
        ...

    def learn(self, batch: MicroBatch, *, read: bool = False) -> Learned:
        """The loss on a microbatch."""
        ...


@dataclass(frozen=True, kw_only=True)
class LessonResult:
    """The result of a run. ``best`` and ``final`` are model folders; losses are in nats per action token."""

    steps: int
    best: Path
    final: Path
    loss: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float


@dataclass
class _Run:
    """The state of a run that changes while it goes on."""

    step: int = 0
    best: float | None = None
    last: dict[str, float | None] = field(default_factory=dict)


def answer_pools(sequences: Sequence[TrainingSample]) -> Pools:
    """Place within an answer -> the token ids that were said there, each once. Noise is drawn from these."""
    offsets = torch.cat([sequence.offsets for sequence in sequences])
    said = torch.cat([sequence.ids[sequence.positions] for sequence in sequences])
    return {place: said[offsets == place].unique() for place in offsets.unique().tolist()}


def with_history_noise(
    sequence: TrainingSample, share: float, pools: Pools, rng: np.random.Generator
) -> TrainingSample:
    """Replace ``share`` of the answer tokens that are read; what is learned at their places stays what it was.

    Only tokens that can be something else are touched, so a stop token that ends every answer stays.
    """
    targets = sequence.targets if sequence.targets is not None else sequence.ids[sequence.positions]
    ids = sequence.ids.clone()
    noisy = torch.from_numpy(rng.random(sequence.actions) < share)
    for place, pool in pools.items():
        chosen = (noisy & (sequence.offsets == place)).nonzero()[:, 0]
        if len(pool) > 1 and len(chosen):
            ids[sequence.positions[chosen]] = torch.from_numpy(rng.choice(pool.numpy(), size=len(chosen)))
    return replace(sequence, ids=ids, targets=targets)


def short_turns(sequence: TrainingSample, turns: int) -> TrainingSample:
    """The sequence with only its first ``turns`` turns learned; what comes after them is not computed either."""
    return sequence.only(sequence.turns < sequence.turns.min() + turns)


class Augmented:
    """Changes sequences before they are learned, as the settings say: noise in the answers that are read, and fewer turns."""

    def __init__(self, config: LessonConfig, pools: Pools) -> None:
        self._config, self._pools = config, pools

    @classmethod
    def like(cls, config: LessonConfig, sequences: Sequence[TrainingSample]) -> Augmented:
        """Noise is drawn from the answers of ``sequences``."""
        return cls(config, answer_pools(sequences) if config.history_noise else {})

    def batch(self, sequences: Sequence[TrainingSample], *key: int) -> list[TrainingSample]:
        """The sequences of a step."""
        noisy = [self.noisy(one, *key, number) for number, one in enumerate(sequences)]
        turns = turns_of(self._config, *key)
        return noisy if turns is None else [short for one in noisy if (short := short_turns(one, turns)).actions]

    def noisy(self, sequence: TrainingSample, *key: int | str) -> TrainingSample:
        """The sequence with noise in the answers that are read, if the settings want it."""
        if not self._config.history_noise:
            return sequence
        rng = np.random.default_rng(child_seed(self._config.seed, "sft", "noise", *key))
        return with_history_noise(sequence, self._config.history_noise, self._pools, rng)


def turns_of(config: LessonConfig, *key: int) -> int | None:
    """Returns how many turns of its episodes a step learns; None for all."""
    coin = child_rng(config.seed, "sft", "short", *key).random()
    return config.short_turns if coin < config.short_turns_share else None


def take_lessons(trainer: LessonTrainer, options: RunOptions, *, resume: bool) -> LessonResult:
    """Take all steps that remain, show them, and write ``best`` and ``final``."""
    if resume:
        trainer.restore()
    started = time.perf_counter()
    kind, steps, done = trainer.lessons.kind, trainer.steps, trainer.run.step
    screen = Screen(kind, steps=steps, figures=FIGURES, done=done, live=options.live and world().main)
    with screen, Interrupt() as interrupt:
        for record in trainer.train(interrupt):
            screen.step(record)
            if options.on_step is not None:
                options.on_step(record)
    trainer.finish()
    last = trainer.run.last
    return LessonResult(
        steps=trainer.run.step,
        best=trainer.folder.path / "best",
        final=trainer.folder.path / "final",
        loss=last.get("loss"),
        validation_loss=last.get("validation_loss"),
        validation_accuracy=last.get("validation_accuracy"),
        seconds=time.perf_counter() - started,
    )


class LessonTrainer:
    """The loop's state: model, optimizer, step and best validation loss."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: LessonConfig,
        folder: RunFolder,
        lessons: Lessons,
    ) -> None:
        self.loaded, self.config, self.folder, self.lessons = loaded, config, folder, lessons
        shard(loaded, samples=False)
        self.optimizer, self.budget = make_optimizer(loaded.model, config), PassBudget(config)
        self.run, self.steps = _Run(), lessons.steps
        self._checks = self._cut(lessons.checks())

    def _cut(self, sequences: Sequence[TrainingSample]) -> list[MicroBatch]:
        share = supports_tree(self.loaded.model)
        return microbatches(sequences, budget=self.budget.tokens, share=share) if sequences else []

    def train(self, interrupt: Interrupt) -> Iterator[SftRecord]:
        """Take the remaining steps; yields one metrics record a step. Raises KeyboardInterrupt behind a checkpoint."""
        while self.run.step < self.steps:
            record = self._step(self.run.step + 1)
            figures = cast(Mapping[str, Any], record)
            self.run.step += 1
            wanted = ("loss", "validation_loss", "validation_accuracy")
            self.run.last |= {key: value for key, value in figures.items() if key in wanted}
            self.folder.append(record)
            due = self.run.step % self.config.checkpoint_every == 0 or self.run.step == self.steps
            interrupted = any_of(interrupt.requested)
            if due or interrupted:
                self.checkpoint()
            if interrupted:
                raise KeyboardInterrupt
            yield record

    def _step(self, step: int) -> SftRecord:
        started = time.perf_counter()
        sequences = self.lessons.batch(step)
        n_tokens = sum(sequence.actions for sequence in sequences)
        totals = {"loss": 0.0, "right": 0.0}

        def loss(microbatch: MicroBatch) -> Tensor:
            learned = self.lessons.learn(microbatch, read=self.config.observations > 0)
            part = learned.loss / n_tokens
            totals["loss"] += float(part.detach())
            totals["right"] += float(learned.right)
            return part if learned.read is None else part - self.config.observations * learned.read / n_tokens

        lr = lr_at(self.config, step, self.steps)
        own = [sequences[index] for index in share(len(sequences))]  # this process's

        def update(tokens: int) -> tuple[float, list[MicroBatch]]:
            totals.update(loss=0.0, right=0.0)
            batches = self._cut(own)
            with precision(self.loaded, self.config):
                backward_passes(self.loaded, self.optimizer, batches, loss)
                return apply_gradients(self.loaded, self.optimizer, self.config, lr).norm, batches

        norm, batches = self.budget.spend(update, max((int(one.positions[-1]) for one in own), default=0))
        seconds = time.perf_counter() - started
        totals["loss"], totals["right"], tokens = total(
            (totals["loss"], totals["right"], sum(microbatch.tokens for microbatch in batches))
        )
        record: SftRecord = {
            "kind": self.lessons.kind,
            "step": step,
            "epoch": self.lessons.epoch(step),
            "loss": totals["loss"],
            "accuracy": totals["right"] / n_tokens,
            "grad_norm": norm,
            "lr": lr,
            "tokens": int(tokens),
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }
        every = self.config.validation_every
        every = self.lessons.validation_every if every is None else every
        if self._checks and every and (step % every == 0 or step == self.steps):
            record["validation_loss"], record["validation_accuracy"] = self._validate()
        return record

    @torch.no_grad()
    def _validate(self) -> tuple[float, float]:
        loss = right = tokens = 0.0
        mine = share(len(self._checks))
        # If each process holds a part of the model, all meet in each pass.
        checks = self._checks if is_sharded(self.loaded.model) else self._checks[mine.start : mine.stop]
        with precision(self.loaded, self.config):
            for batch in checks:
                learned = self.lessons.learn(batch.to(self.loaded.device))
                loss += float(learned.loss)
                right += float(learned.right)
                tokens += len(batch.labels.target)
        loss, right, tokens = total((loss, right, tokens))
        mean_loss = loss / tokens
        if self.run.best is None or mean_loss < self.run.best:
            self.run.best = mean_loss
            self.save("best")
        return mean_loss, right / tokens

    def checkpoint(self) -> None:
        """Write down where the run stands."""
        state = {"best": self.run.best, "last": self.run.last}
        checkpoint = Checkpoint(step=self.run.step, offset=self.folder.offset(), state=state)
        save_checkpoint(self.folder.path, checkpoint, LocalState(self.loaded.model, self.optimizer))

    def restore(self) -> None:
        """Go back to the newest checkpoint; without one to the beginning."""
        checkpoint = go_back(self.folder, LocalState(self.loaded.model, self.optimizer))
        if checkpoint is not None:
            self.run = _Run(step=checkpoint.step, best=checkpoint.state["best"], last=dict(checkpoint.state["last"]))

    def finish(self) -> None:
        """Write the final model, and make it the best one if nothing was held out."""
        self.save("final")
        if self.run.best is None:
            self.save("best")
        barrier()

    def save(self, name: str) -> None:
        """Write the weights as they are to a folder of the run."""
        save_model(self.folder.path / name, self.loaded)
