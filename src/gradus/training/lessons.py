"""The loop that SFT and distillation share: samples of a step, a loss for each of their tokens, an update, a record, a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_rng, child_seed
from gradus.core.metrics import SftRecord
from gradus.policies.local.loading import LoadedModel
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample, ints
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

Samples = Sequence[TrainingSample]
AnswerPools = Mapping[int, Tensor]
FIGURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "validation loss": "validation_loss",
    "validation accuracy": "validation_accuracy",
    "gradient norm": "grad_norm",
    "tokens/s": "tokens_per_second",
}


@dataclass(frozen=True, kw_only=True)
class LessonLoss:
    """Sums over the tokens of a microbatch.

    ``loss``: with gradient. ``right``: tokens that are the target's likeliest ones. ``read``: log-probs of what the environment showed, with
    gradient; None unless they are computed.
    """

    loss: Tensor
    right: float
    read: Tensor | None


class Lessons(Protocol):
    """The samples that a model is taught at each step, and the loss on them."""

    steps: int
    held_out: Samples  # whose loss chooses the best weights
    validation_every: int  # if the settings do not say

    @property
    def kind(self) -> Literal["sft", "distill"]:
        """The kind of its records."""
        ...

    def batch(self, step: int) -> list[TrainingSample]:
        """The samples of a step, 1 for the first; they depend on the step, the settings and the weights alone."""
        ...

    def epoch(self, step: int) -> int:
        """Says which pass over the lessons a step belongs to, 1 for the first."""
        ...

    def learn(self, batch: MicroBatch, *, read: bool = False) -> LessonLoss:
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
    """The state of a run in a checkpoint, besides weights and optimizer. ``last``: figures of the last step that had them."""

    step: int = 0
    best: float | None = None
    last: dict[str, float | None] = field(default_factory=dict[str, float | None])


@dataclass(frozen=True, kw_only=True)
class _StepSums:
    """Sums of a step over all processes: the loss, tokens that were right, and tokens computed; and the gradient's norm."""

    loss: float
    right: float
    tokens: int
    norm: float


class LessonTrainer:
    """The loop: model, optimizer, and what changes while it goes on."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: LessonConfig,
        folder: RunFolder,
        lessons: Lessons,
    ) -> None:
        self.loaded, self.config, self.folder, self.lessons = loaded, config, folder, lessons
        shard(loaded, samples=False)
        self.optimizer = make_optimizer(loaded.model, config)
        self.budget = PassBudget(config)
        self.state = LessonState()
        self._held_out = self._cut(lessons.held_out, self.budget.tokens) if lessons.held_out else []

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
        with screen, Interrupt() as interrupt:
            for record in self.train(interrupt):
                screen.step(record)
                if options.on_step is not None:
                    options.on_step(record)
        self.save("final")
        if self.state.best is None:  # nothing was held out
            self.save("best")
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

    def train(self, interrupt: Interrupt) -> Iterator[SftRecord]:
        """Takes the remaining steps; yields one metrics record a step. Raises KeyboardInterrupt behind a checkpoint."""
        state = self.state
        while state.step < self.lessons.steps:
            record = self._step(state.step + 1)
            state.step += 1
            state.last["loss"] = record["loss"]
            if "validation_loss" in record and "validation_accuracy" in record:
                state.last["validation_loss"] = record["validation_loss"]
                state.last["validation_accuracy"] = record["validation_accuracy"]
            self.folder.append(record)
            due = state.step % self.config.checkpoint_every == 0 or state.step == self.lessons.steps
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
        sums = self._update([samples[index] for index in share(len(samples))], n_tokens, lr)
        seconds = time.perf_counter() - started
        record: SftRecord = {
            "kind": self.lessons.kind,
            "step": step,
            "epoch": self.lessons.epoch(step),
            "loss": sums.loss,
            "accuracy": sums.right / n_tokens,
            "grad_norm": sums.norm,
            "lr": lr,
            "tokens": sums.tokens,
            "seconds": seconds,
            "tokens_per_second": sums.tokens / seconds,
        }
        interval = self.config.validation_every
        if interval is None:
            interval = self.lessons.validation_every
        if self._held_out and interval and (step % interval == 0 or step == self.lessons.steps):
            record["validation_loss"], record["validation_accuracy"] = self._validate()
        return record

    def _update(
        self,
        samples: Samples,
        n_tokens: int,
        lr: float,
    ) -> _StepSums:
        """Takes one update on this process's samples of a step that has ``n_tokens``."""
        weight = self.config.observations

        def update(tokens: int) -> tuple[float, list[float]]:
            batches = self._cut(samples, tokens)
            losses: list[float] = []
            right: list[float] = []

            def loss(batch: MicroBatch) -> Tensor:
                learned = self.lessons.learn(batch, read=weight > 0)
                part = learned.loss / n_tokens
                losses.append(float(part.detach()))
                right.append(learned.right)
                return part if learned.read is None else part - weight * learned.read / n_tokens

            with precision(self.loaded, self.config):
                backward_passes(self.loaded, self.optimizer, batches, loss)
                step = apply_gradients(self.loaded, self.optimizer, self.config, lr)
            return step.norm, [sum(losses), sum(right), sum(batch.tokens for batch in batches)]

        norm, sums = self.budget.spend(update, max((sample.reach for sample in samples), default=0))
        loss, right, tokens = total(sums)
        return _StepSums(
            loss=loss,
            right=right,
            tokens=int(tokens),
            norm=norm,
        )

    def _cut(self, samples: Samples, tokens: int) -> list[MicroBatch]:
        return microbatches(samples, budget=tokens, share=supports_tree(self.loaded.model))

    @torch.no_grad()
    def _validate(self) -> tuple[float, float]:
        """Loss and accuracy on what is held out; keeps the weights if they are the best so far."""
        batches = self._held_out
        if not is_sharded(self.loaded.model):  # else all processes meet in each pass
            local = share(len(batches))
            batches = batches[local.start : local.stop]
        loss = right = tokens = 0.0
        with precision(self.loaded, self.config):
            for batch in batches:
                learned = self.lessons.learn(batch.to(self.loaded.device))
                loss += float(learned.loss)
                right += learned.right
                tokens += len(batch.labels.target)
        loss, right, tokens = total((loss, right, tokens))
        mean_loss = loss / tokens
        if self.state.best is None or mean_loss < self.state.best:
            self.state.best = mean_loss
            self.save("best")
        return mean_loss, right / tokens

    def checkpoint(self) -> None:
        """Writes down where the run stands."""
        state = {"best": self.state.best, "last": self.state.last}
        checkpoint = Checkpoint(step=self.state.step, offset=self.folder.offset(), state=state)
        save_checkpoint(self.folder.path, checkpoint, LocalState(self.loaded.model, self.optimizer))

    def restore(self) -> None:
        """Goes back to the newest checkpoint; without one to the beginning."""
        checkpoint = go_back(self.folder, LocalState(self.loaded.model, self.optimizer))
        if checkpoint is not None:
            self.state = LessonState(step=checkpoint.step, **checkpoint.state)

    def save(self, name: str) -> None:
        """Writes the weights as they are to a folder of the run."""
        save_model(self.folder.path / name, self.loaded)
