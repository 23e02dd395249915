"""Supervised fine-tuning on stored episodes: the loss is on what was said, never on what was read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gradus.core import ConfigError, Episode, StopReason, child_rng, child_seed
from gradus.core.metrics import SftRecord
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.augmentation import answer_pools, short_turns, with_history_noise
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.distributed.processes import any_of, barrier, share, total, world
from gradus.training.engine.forward import score_tokens
from gradus.training.engine.fsdp import is_sharded, shard
from gradus.training.engine.loss_step import check_can_resume, precision, prepare_model, run_update
from gradus.training.engine.optimizers import lr_at, make_optimizer
from gradus.training.engine.passes import PassBudget
from gradus.training.engine.tree_support import supports_tree
from gradus.training.run.alerts import AlertNotes
from gradus.training.run.checkpoints import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint, save_model
from gradus.training.run.folder import RunFolder
from gradus.training.run.interrupt import Interrupt
from gradus.training.run.live_screen import Screen
from gradus.training.run.options import RunOptions
from gradus.training.run.splits import store_splits, task_id
from gradus.training.sft_config import SftConfig

PLAIN = SamplingConfig()  # SFT maximizes the likelihood under the model's own distribution
FIGURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "validation loss": "validation_loss",
    "validation accuracy": "validation_accuracy",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
}


@dataclass(frozen=True, kw_only=True)
class SftResult:
    """What a run came to. ``best`` and ``final`` are model folders; losses are in nats per action token."""

    steps: int
    best: Path
    final: Path
    loss: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float


@dataclass
class _Run:
    """What changes while a run goes on."""

    step: int = 0
    best: float | None = None
    last: dict[str, float | None] = field(default_factory=dict)


def train_sft(
    model: LoadedModel | str | Path,
    episodes: Sequence[Episode],
    config: SftConfig,
    folder: Path | str,
    *,
    resume: bool = False,
    options: RunOptions | None = None,
) -> SftResult:
    """Train a model on what was said in ``episodes`` and write metrics, checkpoints, ``best`` and ``final`` to ``folder``.

    ``best`` is the model with the lowest validation loss, the final one if nothing is held out. Resuming gives, bit for
    bit, what an unbroken run gives. What the monitor says is shown. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    options = options or RunOptions()
    run_folder = RunFolder(folder, writing=world().main, observer=options.on_record)
    if resume:
        check_can_resume(model)
    loaded = prepare_model(model, config)
    training, validation = _hold_out(episodes, config)
    sequences = text_sequences(loaded, training, reasoning=config.reasoning)
    if config.observations and not any(len(one.read) for one in sequences if one.read is not None):
        raise ConfigError(
            "observations is about what the environment shows after an answer, and these episodes have nothing after one; leave it out"
        )
    checks = text_sequences(loaded, validation, reasoning=config.reasoning) if validation else []
    run_folder.open(config, resume=resume, context={"model": str(loaded.path), "episodes": len(episodes)})
    try:
        splits = {"teach": map(task_id, training), "validation": map(task_id, validation)}
        store_splits(run_folder, {role: set(ids) for role, ids in splits.items()})
        trainer = _Trainer(loaded, config, run_folder, sequences, checks)
        if resume:
            trainer.restore()
        started = time.perf_counter()
        screen = Screen(
            "sft", steps=trainer.steps, figures=FIGURES, done=trainer.run.step, live=options.live and world().main
        )
        notes = AlertNotes(options.monitor)
        with screen, Interrupt() as interrupt:
            for record in trainer.train(interrupt):
                screen.step(record)
                for line in notes.of(record):
                    screen.note(line)
                if options.on_step is not None:
                    options.on_step(record)
    except Exception:
        run_folder.forget_beginning()
        raise
    trainer.finish()
    last = trainer.run.last
    return SftResult(
        steps=trainer.run.step,
        best=run_folder.path / "best",
        final=run_folder.path / "final",
        loss=last.get("loss"),
        validation_loss=last.get("validation_loss"),
        validation_accuracy=last.get("validation_accuracy"),
        seconds=time.perf_counter() - started,
    )


def _hold_out(episodes: Sequence[Episode], config: SftConfig) -> tuple[list[Episode], list[Episode]]:
    """Split off the episodes of some tasks by a shuffle that depends on the seed alone."""
    usable = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    tasks = list(dict.fromkeys(task_id(episode) for episode in usable))
    count = round(config.validation_share * len(tasks))
    if count >= len(tasks):
        raise ConfigError(f"nothing is left to train on: {len(tasks)} tasks with usable episodes, {count} held out")
    order = np.random.default_rng(child_seed(config.seed, "sft", "validation")).permutation(len(tasks))
    held_out = {tasks[place] for place in order[:count].tolist()}
    training = [episode for episode in usable if task_id(episode) not in held_out]
    return training, [episode for episode in usable if task_id(episode) in held_out]


class _Trainer:
    """The loop's state: model, optimizer, step and best validation loss."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: SftConfig,
        folder: RunFolder,
        sequences: Sequence[TrainingSample],
        checks: Sequence[TrainingSample],
    ) -> None:
        self.loaded, self.config, self.folder = loaded, config, folder
        shard(loaded, samples=False)
        self.optimizer, self.budget = make_optimizer(loaded.model, config), PassBudget(config)
        self.run = _Run()
        self._by_episode: dict[int, list[TrainingSample]] = {}
        for sequence in sequences:
            self._by_episode.setdefault(sequence.episode, []).append(sequence)
        self._pools = answer_pools(sequences) if config.history_noise else {}
        self._checks = self._cut([self._noisy(one, "check", number) for number, one in enumerate(checks)])
        self._batches_per_epoch = math.ceil(len(self._by_episode) / config.batch_size)
        planned = config.epochs * self._batches_per_epoch
        self.steps = planned if config.max_steps is None else min(planned, config.max_steps)

    def _cut(self, sequences: Sequence[TrainingSample]) -> list[MicroBatch]:
        share = supports_tree(self.loaded.model)
        return microbatches(sequences, budget=self.budget.tokens, share=share) if sequences else []

    def train(self, interrupt: Interrupt) -> Iterator[SftRecord]:
        """Take the remaining steps; yields one metrics record a logged step. Raises KeyboardInterrupt behind a checkpoint."""
        while self.run.step < self.steps:
            record = self._step(self.run.step + 1)
            figures = cast(Mapping[str, Any], record)
            self.run.step += 1
            wanted = ("loss", "validation_loss", "validation_accuracy")
            self.run.last |= {key: value for key, value in figures.items() if key in wanted}
            logged = (
                self.run.step % self.config.log_every == 0 or self.run.step == self.steps or "validation_loss" in record
            )
            if logged:
                self.folder.append(record)
            due = self.run.step % self.config.checkpoint_every == 0 or self.run.step == self.steps
            asked = any_of(interrupt.asked)
            if due or asked:
                self.checkpoint()
            if asked:
                raise KeyboardInterrupt
            if logged:
                yield record

    def _step(self, step: int) -> SftRecord:
        started = time.perf_counter()
        epoch, batch = divmod(step - 1, self._batches_per_epoch)
        sequences = self._batch(epoch, batch)
        n_tokens = sum(sequence.actions for sequence in sequences)
        totals = {"loss": 0.0, "right": 0.0}

        def loss(microbatch: MicroBatch) -> Tensor:
            scores = score_tokens(self.loaded.model, microbatch, PLAIN, greedy=True, read=self.config.observations > 0)
            assert scores.greedy is not None
            part = -scores.logprobs.sum() / n_tokens
            totals["loss"] += float(part.detach())
            totals["right"] += float(scores.greedy.sum())
            return part if scores.read is None else part - self.config.observations * scores.read.sum() / n_tokens

        lr = lr_at(self.config, step, self.steps)
        own = [sequences[index] for index in share(len(sequences))]  # this process's

        def update(tokens: int) -> tuple[float, list[MicroBatch]]:
            totals.update(loss=0.0, right=0.0)
            batches = self._cut(own)
            with precision(self.loaded, self.config):
                return run_update(self.loaded, self.optimizer, batches, loss, self.config, lr)[0], batches

        norm, batches = self.budget.spend(update, max((int(one.positions[-1]) for one in own), default=0))
        seconds = time.perf_counter() - started
        totals["loss"], totals["right"], tokens = total(
            (totals["loss"], totals["right"], sum(microbatch.tokens for microbatch in batches))
        )
        record: SftRecord = {
            "kind": "sft",
            "step": step,
            "epoch": epoch + 1,
            "loss": totals["loss"],
            "accuracy": totals["right"] / n_tokens,
            "grad_norm": norm,
            "lr": lr,
            "tokens": int(tokens),
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }
        every = self.config.validation_every
        every = self._batches_per_epoch if every is None else every
        if self._checks and every and (step % every == 0 or step == self.steps):
            record["validation_loss"], record["validation_accuracy"] = self._validate()
        return record

    def _batch(self, epoch: int, batch: int) -> list[TrainingSample]:
        """The sequences of one step: a slice of the epoch's shuffle, which depends on seed and epoch alone."""
        numbers = sorted(self._by_episode)
        order = np.random.default_rng(child_seed(self.config.seed, "sft", "epoch", epoch)).permutation(len(numbers))
        size = self.config.batch_size
        chosen = order[batch * size : (batch + 1) * size].tolist()
        sequences = [sequence for index in chosen for sequence in self._by_episode[numbers[index]]]
        sequences = [self._noisy(one, epoch, batch, number) for number, one in enumerate(sequences)]
        config = self.config
        coin = child_rng(config.seed, "sft", "short", epoch, batch).random()
        if config.short_turns is None or coin >= config.short_turns_share:
            return sequences
        return [short for one in sequences if (short := short_turns(one, config.short_turns)).actions]

    def _noisy(self, sequence: TrainingSample, *key: int | str) -> TrainingSample:
        """The sequence with noise in the answers that are read, if the settings want it."""
        if not self.config.history_noise:
            return sequence
        rng = np.random.default_rng(child_seed(self.config.seed, "sft", "noise", *key))
        return with_history_noise(sequence, self.config.history_noise, self._pools, rng)

    @torch.no_grad()
    def _validate(self) -> tuple[float, float]:
        loss = right = tokens = 0.0
        mine = share(len(self._checks))
        # If each process holds a part of the model, all meet in each pass.
        checks = self._checks if is_sharded(self.loaded.model) else self._checks[mine.start : mine.stop]
        with precision(self.loaded, self.config):
            for batch in checks:
                scores = score_tokens(self.loaded.model, batch.to(self.loaded.device), PLAIN, greedy=True)
                assert scores.greedy is not None
                loss -= float(scores.logprobs.sum())
                right += float(scores.greedy.sum())
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
        keep = self.config.keep_checkpoints
        save_checkpoint(self.folder.path, checkpoint, self.loaded.model, self.optimizer, keep=keep)

    def restore(self) -> None:
        """Go back to the newest checkpoint; to the beginning if there is none."""
        path = latest_checkpoint(self.folder.path)
        if path is None:
            self.folder.truncate(0)
            return
        checkpoint = load_checkpoint(path, self.loaded.model, self.optimizer)
        self.folder.truncate(checkpoint.offset)
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
