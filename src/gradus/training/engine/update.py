"""The training half of a GRPO step: sampled tokens and their advantages in, new weights and figures out.

A frozen plan says what an update trains and what its losses are divided by; a frozen result says what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import torch
from torch import Tensor

from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import Samples
from gradus.training.distributed.processes import gather
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.fsdp import idle_passes, is_sharded
from gradus.training.engine.loss_step import PassBudget, StepTaken, TrainingError, apply_gradients, backward_passes
from gradus.training.engine.objective import (
    BatchTokens,
    UpdatePlan,
    batch_tokens,
    flat_row,
    kl_loss,
    plan_epoch,
    policy_loss,
)
from gradus.training.engine.prepare import precision
from gradus.training.engine.reference import Reference
from gradus.training.engine.tree_support import supports_tree, tree_attention
from gradus.training.engine.update_figures import (
    Differences,
    LogpDiff,
    UpdateSums,
    add_up,
    check_logp_diff,
    logp_diff_figures,
    logp_diff_limits,
    measure_logp_diff,
    pass_figures,
    uses_trainer_logprobs,
)


@frozen_record
class UpdateResult:
    """Figures of all updates on one batch of episodes; those of the losses are means over the tokens of the last pass.

    ``logp_diff``: sampler against trainer before the first update; None if nothing was trained. ``grad_norm``: the largest of the updates.
    """

    figures: Json
    logp_diff: LogpDiff | None
    grad_norm: float | None
    trained_tokens: int
    seconds: Mapping[str, float]

    @property
    def logp_diff_max(self) -> float | None:
        """The largest difference at any token, nats."""
        return None if self.logp_diff is None else self.logp_diff.max


class UpdateWatch:
    """What looks on at the updates of a step, and changes nothing. This one sees nothing."""

    def begins(self) -> None:
        """Before the passes."""

    def watched(
        self, plan: UpdatePlan, indexes: Sequence[int], tokens: BatchTokens, entropy: Tensor, reference: Tensor | None
    ) -> Tensor:
        """Returns the log-probs (1, A) that the losses of a microbatch take; ``entropy`` (A,) and the ``reference``'s (1, A) are beside them."""
        return tokens.logprobs

    def passed(
        self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float, optimizer: torch.optim.Optimizer, lr: float
    ) -> None:
        """Between the passes and the optimizer's step."""

    def moved(self, norm: float) -> None:
        """Behind the optimizer's step."""


@frozen_record
class UpdateOptions:
    """The settings of an update besides its samples.

    ``reference``: the model that KL is measured to. ``key`` makes the shuffle of minibatches. ``budget``: what earlier steps have
    learned about the size of passes. ``watch``: what looks on.
    """

    reference: Reference | None = None
    key: Sequence[int | str] = ()
    budget: PassBudget | None = None
    watch: UpdateWatch = field(default_factory=UpdateWatch)


@frozen_record
class MinibatchResult:
    """The result of one optimizer update. ``logp_diff``: sampler against trainer; None unless it was the first update."""

    sums: UpdateSums
    step: StepTaken
    logp_diff: LogpDiff | None


def policy_update(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    credited: Samples,
    config: GrpoConfig,
    lr: float,
    options: UpdateOptions | None = None,
) -> UpdateResult:
    """Takes ``epochs`` x ``minibatches`` updates. Groups stay whole; losses are divided by figures of a whole update.

    Raises:
        TrainingError: the sampler's log-probs and the trainer's differ by more than rounding explains (``max_logp_diff``). No weight
            has changed then.
    """
    started = time.perf_counter()
    options = options or UpdateOptions()
    trainer = UpdateTrainer(
        loaded=loaded,
        config=config,
        reference=options.reference,
        budget=options.budget or PassBudget(config),
        watch=options.watch,
        shares=_shares_prefixes(loaded, options.reference),
    )
    results: list[MinibatchResult] = []
    plans: list[UpdatePlan] = []
    logp_diff: LogpDiff | None = None
    for epoch in range(config.epochs):
        plans = plan_epoch(credited, config, (*options.key, epoch))
        # Only the very first update has a ratio of exactly 1; whatever is updated later needs the log-probs from before it.
        later_updates = len(plans) > 1 or (trainer.by_trainer and config.epochs > 1)
        if epoch == 0 and later_updates:
            trainer, logp_diff = _score_before(trainer, plans)
        for plan in plans:
            result = run_update(trainer, plan, optimizer, lr, first=logp_diff is None)
            logp_diff = logp_diff or result.logp_diff
            results.append(result)
    stepping = sum(result.step.seconds for result in results)
    last_epoch = results[len(results) - len(plans) :]
    return UpdateResult(
        figures={
            "updates": len(results),
            **pass_figures([result.sums for result in last_epoch]),
            **logp_diff_figures(logp_diff, trainer.limits),
        },
        logp_diff=logp_diff,
        grad_norm=max((result.step.norm for result in results), default=None),
        trained_tokens=sum(plan.scored for plan in plans),
        seconds={"train": time.perf_counter() - started - stepping, "update": stepping},
    )


@frozen_record
class UpdateTrainer:
    """The model and the objective of a step's updates.

    ``shares``: whether microbatches may share prefixes. ``stored``: the trainer's log-probs from before the first update, by a sample's index.
    """

    loaded: LoadedModel
    config: GrpoConfig
    reference: Reference | None
    budget: PassBudget
    watch: UpdateWatch
    shares: bool
    stored: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])

    @property
    def limits(self) -> LogpDiff:
        """How far sampler and trainer may differ."""
        return logp_diff_limits(self.loaded, self.config)

    @property
    def by_trainer(self) -> bool:
        """Says whether the ratio's denominators are the trainer's log-probs, not the sampler's."""
        return uses_trainer_logprobs(self.loaded, self.config)

    def cut(self, plan: UpdatePlan, tokens: int) -> list[MicroBatch]:
        """This process's passes of an update, of so many tokens each."""
        samples = [plan.samples[index] for index in plan.local]
        vocabulary = vocabulary_size(self.loaded.model)
        return microbatches(samples, budget=tokens, share=self.shares, vocabulary=vocabulary)

    def old_logprobs(self, indexes: Sequence[int], sampled: Tensor, logprobs: Tensor) -> Tensor:
        """(1, A) denominators of a microbatch's ratio. What was not stored is of the first update, whose ratio is 1."""
        if not self.by_trainer:
            return sampled
        if not self.stored:
            return logprobs.detach()
        return flat_row([self.stored[index] for index in indexes], logprobs)


def _shares_prefixes(loaded: LoadedModel, reference: Reference | None) -> bool:
    if reference is None:
        return supports_tree(loaded.model)
    with reference() as model:
        return supports_tree(loaded.model) and supports_tree(model)


def _score_before(trainer: UpdateTrainer, plans: Sequence[UpdatePlan]) -> tuple[UpdateTrainer, LogpDiff | None]:
    """Scores all samples before the first update, as their updates will. Returns the trainer with old log-probs, and how far the sampler's are.

    Raises TrainingError if that is more than rounding explains: sampler and trainer still have the same weights.
    """
    stored: dict[int, Tensor] = {}
    differences: list[Differences] = []
    for plan in plans:
        for index, logprobs in gather(_score(trainer, plan)):
            differences.append((logprobs - plan.samples[index].logprobs).abs().numpy())
            stored[index] = logprobs  # the next epoch may deal them anew
    logp_diff = measure_logp_diff(differences)
    check_logp_diff(logp_diff, trainer.limits)
    if trainer.by_trainer:
        trainer = replace(trainer, stored=stored)
    return trainer, logp_diff


ScoredSample = tuple[int, Tensor]  # index and log-probs (A,)


@torch.no_grad()
def _score(trainer: UpdateTrainer, plan: UpdatePlan) -> list[ScoredSample]:
    """Scores the samples of this process."""
    loaded, config = trainer.loaded, trainer.config

    def score(tokens: int) -> list[ScoredSample]:
        batches = trainer.cut(plan, tokens)
        scored: list[ScoredSample] = []
        with precision(loaded, config):
            if is_sharded(loaded.model):  # all processes meet in each pass; none goes backwards
                idle_passes(loaded, len(batches), lambda loss: None)
            for batch in batches:
                scores = score_tokens(loaded.model, batch.to(loaded.device), config.sampling)
                parts = batch.by_sequence(scores.logprobs.float().cpu())
                scored += [(plan.local[row], logprobs) for row, logprobs in parts]
        return scored

    return trainer.budget.spend(score, plan.longest)


def run_update(
    trainer: UpdateTrainer,
    plan: UpdatePlan,
    optimizer: torch.optim.Optimizer,
    lr: float,
    *,
    first: bool,
) -> MinibatchResult:
    """Takes one optimizer update. The ``first`` one of a step measures how far sampler and trainer differ.

    Raises:
        TrainingError: they differ by more than rounding explains, or a process lost its share. No weight has changed then.
    """

    watch = trainer.watch

    def update(tokens: int) -> MinibatchResult:
        batches = trainer.cut(plan, tokens)
        parts: list[UpdateSums] = []

        def loss(batch: MicroBatch) -> Tensor:
            value, measured = microbatch_loss(trainer, plan, batch)
            # Behind the first update the weights differ from the sampler's, and so do log-probs, without any fault.
            parts.append(measured if first else replace(measured, differences=()))
            return value

        watch.begins()
        with precision(trainer.loaded, trainer.config):
            backward_passes(trainer.loaded, optimizer, batches, loss)
            sums = add_up(gather(parts))
            if sums.scored != plan.scored:
                raise TrainingError(
                    f"the processes trained {sums.scored} of the {plan.scored} tokens of an update, so the gradient of a process is lost. "
                    "No weight was changed. Look for a process that skips its share of the sequences"
                )
            logp_diff = measure_logp_diff(sums.differences)
            check_logp_diff(logp_diff, trainer.limits)
        watch.passed(trainer, plan, sums.loss, optimizer, lr)
        with precision(trainer.loaded, trainer.config):
            step = apply_gradients(trainer.loaded, optimizer, trainer.config, lr)
        watch.moved(step.norm)
        return MinibatchResult(sums=sums, step=step, logp_diff=logp_diff)

    return trainer.budget.spend(update, plan.longest)


def microbatch_loss(trainer: UpdateTrainer, plan: UpdatePlan, batch: MicroBatch) -> tuple[Tensor, UpdateSums]:
    """The part of an update's loss that a microbatch carries, and what it adds to the sums of the update."""
    config = trainer.config
    scores = score_tokens(
        trainer.loaded.model,
        batch,
        config.sampling,
        entropy=True,
        differentiate=config.entropy_coef != 0,
        read=config.observations > 0,
    )
    assert scores.entropy is not None
    indexes = [plan.local[row] for row in batch.sequences]
    logprobs = scores.logprobs[None]
    sampled = flat_row([plan.samples[index].logprobs for index in indexes], logprobs)
    old = trainer.old_logprobs(indexes, sampled, logprobs)
    tokens = batch_tokens(config, plan, indexes, logprobs, old, batch.labels.row[None])
    reference = None if trainer.reference is None else _reference_logprobs(trainer, batch)
    tokens = replace(tokens, logprobs=trainer.watch.watched(plan, indexes, tokens, scores.entropy, reference))
    loss, metrics = policy_loss(config, plan, tokens)
    if config.entropy_coef:
        shares = flat_row([plan.samples[index].bonus for index in indexes], scores.entropy)
        loss = loss - config.entropy_coef * (scores.entropy * shares[0]).sum() / plan.n_tokens
    if scores.read is not None:
        loss = loss - config.observations * scores.read.sum() / plan.n_tokens
    kl = None
    if reference is not None:
        term, kl = kl_loss(config, plan, tokens, reference)
        loss = loss + term
    sums = UpdateSums(
        loss=float(loss.detach()),
        kl=kl,
        entropy=float(scores.entropy.detach().sum()),
        metrics=[metrics],
        tokens=plan.n_tokens,
        scored=scores.logprobs.numel(),
        differences=[(tokens.logprobs.detach() - tokens.sampled).abs()[0].float().cpu().numpy()],
    )
    return loss, sums


@torch.no_grad()
def _reference_logprobs(trainer: UpdateTrainer, batch: MicroBatch) -> Tensor:
    """(1, A) of the same tokens under the frozen model."""
    assert trainer.reference is not None
    with trainer.reference() as model, tree_attention(model):
        return score_tokens(model, batch, trainer.config.sampling).logprobs[None]
