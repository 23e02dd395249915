"""A model in this process that is taught lessons: passes, optimizer, and the figures of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gradus.policies.local.loading import LoadedModel
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import share, total, world
from gradus.training.engine.fsdp import is_sharded, shard
from gradus.training.engine.loss_step import PassBudget, apply_gradients, backward_passes
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import precision
from gradus.training.engine.tree_support import supports_tree
from gradus.training.laws.lessons import LessonLaws
from gradus.training.laws.movement import fingerprint, unmoved
from gradus.training.laws.runner import LawRunner
from gradus.training.lesson_config import LessonConfig
from gradus.training.lessons import HeldOutFigures, LessonLoss, Samples, StepSums
from gradus.training.run.checkpoints import LocalState, save_model


class Learn(Protocol):
    """The loss on a microbatch; with ``read`` also on what the environment showed."""

    def __call__(self, batch: MicroBatch, *, read: bool = False) -> LessonLoss: ...


class LocalLessonModel:
    """A model in this process, and its optimizer.

    ``held_out``: the samples that :meth:`measure` is asked about. ``learn``: the loss on a microbatch. ``plain``: the same of one sample's
    learned tokens, by a plain pass; without it no law watches the updates.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: LessonConfig,
        held_out: Samples,
        learn: Learn,
        plain: Callable[[TrainingSample], Tensor] | None = None,
    ) -> None:
        self.loaded, self.config, self._learn, self._plain = loaded, config, learn, plain
        self._left: dict[str, float] = {}  # by the last update, if it was watched
        shard(loaded, samples=False)
        self.optimizer = make_optimizer(loaded.model, config)
        self.budget = PassBudget(config)
        self._held_out = self._cut(held_out, self.budget.tokens) if held_out else []

    @property
    def state(self) -> LocalState:
        """Weights and optimizer, as checkpoints store and restore them."""
        return LocalState(self.loaded.model, self.optimizer)

    @property
    def local_model(self) -> LoadedModel | None:
        """The model, if this process alone holds it."""
        return self.loaded if world().size == 1 and not is_sharded(self.loaded.model) else None

    def update(self, samples: Samples, lr: float, laws: LawRunner | None = None) -> StepSums:
        """Takes the update of a step; this process computes its share of the samples."""
        n_tokens = sum(sample.actions for sample in samples)
        local = [samples[index] for index in share(len(samples))]
        weight = self.config.observations
        if laws is not None and self._left:
            laws.check("optimizer", unmoved, self._left, fingerprint(self.loaded, self.optimizer))
        self._left = {}
        watch = None
        if laws is not None and laws.due and self.local_model is not None and self._plain is not None:
            watch = LessonLaws(laws, self.loaded, self.config, samples, self._plain, self._part(n_tokens))

        def update(tokens: int) -> tuple[float, list[float]]:
            batches = self._cut(local, tokens)
            losses: list[float] = []
            right: list[float] = []

            def loss(batch: MicroBatch) -> Tensor:
                learned = self._learn(batch, read=weight > 0)
                part = learned.loss / n_tokens
                losses.append(float(part.detach()))
                right.append(learned.right)
                return part if learned.read is None else part - weight * learned.read / n_tokens

            if watch is not None:
                watch.begins()
            with precision(self.loaded, self.config):
                backward_passes(self.loaded, self.optimizer, batches, loss)
            if watch is not None:
                watch.passed(self.optimizer, lr, sum(len(batch.labels.target) for batch in batches))
            with precision(self.loaded, self.config):
                step = apply_gradients(self.loaded, self.optimizer, self.config, lr)
            if watch is not None:
                watch.moved(step.norm)
            return step.norm, [sum(losses), sum(right), sum(batch.tokens for batch in batches)]

        norm, sums = self.budget.spend(update, max((sample.reach for sample in local), default=0))
        if watch is not None:
            self._left = fingerprint(self.loaded, self.optimizer)
        loss, right, tokens = total(sums)
        return StepSums(loss=loss, right=right, computed=int(tokens), norm=norm)

    @torch.no_grad()
    def measure(self, samples: Samples) -> HeldOutFigures:
        """Loss and accuracy on what is held out."""
        batches = self._held_out
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

    def save(self, folder: Path) -> None:
        """Writes the weights as they are to a model folder."""
        save_model(folder, self.loaded)

    def _part(self, n_tokens: int) -> Callable[[Samples], Tensor]:
        """The loss of some samples of a step that learns so many tokens, as its passes compute it."""
        weight = self.config.observations

        def part(samples: Samples) -> Tensor:
            losses: list[Tensor] = []
            for batch in self._cut(samples, self.budget.tokens):
                learned = self._learn(batch.to(self.loaded.device), read=weight > 0)
                losses.append(learned.loss if learned.read is None else learned.loss - weight * learned.read)
            return torch.stack(losses).sum() / n_tokens

        return part

    def _cut(self, samples: Samples, tokens: int) -> list[MicroBatch]:
        return microbatches(samples, budget=tokens, share=supports_tree(self.loaded.model))
