"""A model in this process that is taught lessons: passes, optimizer, and the figures of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gradus.policies.local.loading import LoadedModel
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import Samples, TrainingSample
from gradus.training.distributed.processes import share, total, world
from gradus.training.engine.fsdp import is_sharded, shard
from gradus.training.engine.loss_step import PassBudget, apply_gradients, backward_passes
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import precision
from gradus.training.engine.tree_support import supports_tree
from gradus.training.laws.lessons import LessonLaws, held_out_again
from gradus.training.laws.models import adapters_again, loaded_again
from gradus.training.laws.movement import BetweenUpdates
from gradus.training.laws.plain_pass import beginning
from gradus.training.laws.runner import LawRunner
from gradus.training.laws.step import is_exact
from gradus.training.laws.storing import folder_again
from gradus.training.lesson_config import LessonConfig
from gradus.training.lessons import HeldOutFigures, LessonLoss, StepSums
from gradus.training.run.checkpoints import LocalState, save_model

_MEASURED = 3  # held-out samples whose loss is computed again


class Learn(Protocol):
    """The loss on a microbatch; with ``read`` also on what the environment showed."""

    def __call__(self, batch: MicroBatch, *, read: bool = False) -> LessonLoss: ...


class LocalLessonModel:
    """A model in this process, and its optimizer.

    ``learn``: the loss on a microbatch. ``plain``: the same of one sample's learned tokens, by a plain pass; without it no law watches the
    updates.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: LessonConfig,
        learn: Learn,
        plain: Callable[[TrainingSample], Tensor] | None = None,
    ) -> None:
        self.loaded, self.config = loaded, config
        self._learn, self._plain = learn, plain
        self._between = BetweenUpdates(loaded)
        shard(loaded, samples=False)
        self.optimizer = make_optimizer(loaded.model, config)
        self.budget = PassBudget(config)

    @property
    def state(self) -> LocalState:
        """Weights and optimizer, as checkpoints store and restore them."""
        return LocalState(self.loaded.model, self.optimizer)

    def update(self, samples: Samples, lr: float, laws: LawRunner | None = None) -> StepSums:
        """Takes the update of a step; this process computes its share of the samples."""
        n_tokens = sum(sample.actions for sample in samples)
        local = [samples[index] for index in share(len(samples))]
        if laws is None:
            self._between.forget()
        else:
            self._between.begins(laws, self.optimizer)
        watch = self._watch(laws, n_tokens)

        def update(tokens: int) -> tuple[float, list[float]]:
            batches = self._cut(local, tokens)
            losses: list[float] = []
            right: list[float] = []

            def loss(batch: MicroBatch) -> Tensor:
                value, learned = self._loss(batch, n_tokens)
                losses.append(float(learned.loss.detach()) / n_tokens)
                right.append(learned.right)
                return value

            if watch is not None:
                watch.begins()
            with precision(self.loaded, self.config):
                backward_passes(self.loaded, self.optimizer, batches, loss)
            if watch is not None:
                learned_tokens = sum(len(batch.labels.target) for batch in batches)
                watch.passed(samples, self.optimizer, lr, learned_tokens, sum(losses))
            with precision(self.loaded, self.config):
                step = apply_gradients(self.loaded, self.optimizer, self.config, lr)
            if watch is not None:
                watch.moved(step.norm)
            return step.norm, [sum(losses), sum(right), sum(batch.tokens for batch in batches)]

        norm, sums = self.budget.spend(update, max((sample.reach for sample in local), default=0))
        if watch is not None and laws is not None:
            self._between.ends(self.optimizer)
            laws.check("optimizer", adapters_again, self.loaded, self.config, laws.step)
        loss, right, tokens = total(sums)
        return StepSums(loss=loss, right=right, computed=int(tokens), norm=norm)

    def _watch(self, laws: LawRunner | None, n_tokens: int) -> LessonLaws | None:
        """Returns what watches an update that learns so many tokens; None if nothing does."""
        if laws is None or not laws.due or world().size > 1 or self._plain is None:
            return None

        def part(some: Samples) -> Tensor:
            batches = self._cut(some, self.budget.tokens)
            losses = [self._loss(batch.to(self.loaded.device), n_tokens)[0] for batch in batches]
            return torch.stack(losses).sum()

        return LessonLaws(laws, self.loaded, self.config, self._plain, part)

    def measure(self, samples: Samples, laws: LawRunner | None = None) -> HeldOutFigures:
        """Loss and accuracy on what is held out; ``laws`` look at some samples."""
        figures = self._measure(self._cut(samples, self.budget.tokens))
        if laws is not None and world().size == 1 and self._plain is not None:
            some = [beginning(self.loaded, sample) for sample in samples[:_MEASURED]]
            # In several passes, whose sums must add up.
            part = self._measure(self._cut(some, max(map(len, some))))
            rounding = 1e-4 if is_exact(self.loaded, self.config) else 0.1
            laws.check("loss", held_out_again, part.loss, part.accuracy, self.loaded, self._plain, some, rounding)
        return figures

    @torch.no_grad()
    def _measure(self, batches: Sequence[MicroBatch]) -> HeldOutFigures:
        if not is_sharded(self.loaded.model):  # else all processes meet in each pass
            local = share(len(batches))
            batches = batches[local.start : local.stop]
        loss = right = tokens = 0.0
        with precision(self.loaded, self.config):
            for batch in batches:
                learned = self._learn(batch.to(self.loaded.device))
                loss += float(learned.loss)
                right += learned.right
                tokens += len(batch.labels.target)
        loss, right, tokens = total((loss, right, tokens))
        return HeldOutFigures(loss=loss / tokens, accuracy=right / tokens)

    def save(self, folder: Path, laws: LawRunner) -> None:
        """Writes the weights as they are to a model folder, which ``laws`` look at."""
        save_model(folder, self.loaded)
        if world().size > 1:
            return
        laws.check("saved", folder_again, folder, self.loaded)
        if folder.name == "final":
            laws.check("saved", loaded_again, folder, self.loaded, bool(self.config.quantize))

    def _loss(self, batch: MicroBatch, n_tokens: int) -> tuple[Tensor, LessonLoss]:
        """What a microbatch adds to the loss of a step that learns so many tokens, and its sums."""
        weight = self.config.observations
        learned = self._learn(batch, read=weight > 0)
        loss = learned.loss / n_tokens
        if learned.read is not None:
            loss = loss - weight * learned.read / n_tokens
        return loss, learned

    def _cut(self, samples: Samples, tokens: int) -> list[MicroBatch]:
        return microbatches(samples, budget=tokens, share=supports_tree(self.loaded.model))
