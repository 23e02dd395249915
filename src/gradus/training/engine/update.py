"""The training half of a GRPO step: sampled tokens and their advantages in, new weights and figures out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.algorithms import CORRECTIONS, LOSSES, LossResult, average, kl_terms
from gradus.core import ConfigError, child_seed
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import gather, share
from gradus.training.engine.forward import score_tokens, vocabulary_size
from gradus.training.engine.fsdp import idle_passes, is_sharded
from gradus.training.engine.loss_step import PassBudget, TrainingError, precision, run_update
from gradus.training.engine.reference import Reference
from gradus.training.engine.tree_support import supports_tree, tree_attention
from gradus.training.engine.update_figures import (
    LogpDiff,
    UpdateSums,
    check_logp_diff,
    logp_diff_figures,
    logp_diff_limits,
    measure_logp_diff,
    part_of_mean,
    pass_figures,
    uses_trainer_logprobs,
)


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """Figures of all updates on one batch of episodes; those of the losses are means over the tokens of the last pass.

    ``logp_diff``: sampler against trainer before the first update; None if nothing was trained. ``grad_norm``: the largest of the updates.
    ``passes``: microbatches of all passes, for reckoning the arithmetic.
    """

    figures: Mapping[str, Any]
    logp_diff: LogpDiff | None
    grad_norm: float | None
    trained_tokens: int
    passes: Sequence[MicroBatch]
    seconds: Mapping[str, float]

    @property
    def logp_diff_max(self) -> float | None:
        """The largest difference at any token, nats."""
        return None if self.logp_diff is None else self.logp_diff.max


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """The settings of an update besides its samples.

    ``reference``: the model that KL is measured to. ``key`` makes the shuffle of minibatches. ``budget``: what earlier steps have
    learned about the size of passes.
    """

    reference: Reference | None = None
    key: Sequence[int | str] = ()
    budget: PassBudget | None = None


def policy_update(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    credited: Sequence[TrainingSample],
    config: GrpoConfig,
    lr: float,
    options: UpdateOptions | None = None,
) -> UpdateResult:
    """Take ``epochs`` x ``minibatches`` updates. Groups stay whole; losses are divided by figures of a whole update.

    Raises TrainingError, before any weight changes, if the sampler's log-probs and the trainer's differ by more than
    rounding explains (``max_logp_diff``).
    """
    started = time.perf_counter()
    updates: list[_Update] = []
    last: list[_Update] = []  # those of the last epoch
    norm = None
    stepping = 0.0
    options = options or UpdateOptions()
    old, budget = _OldLogprobs(loaded, config), options.budget or PassBudget(config)
    for epoch in range(config.epochs):
        parts = [
            _Update(loaded, config, {index: credited[index] for index in part}, options.reference, old, budget)
            for part in _minibatches(credited, config, (*options.key, epoch))
        ]
        parts = [
            part for part in parts if part.trained
        ]  # without a signal there is nothing to learn, and no momentum to follow
        if not epoch and (len(parts) > 1 or (old.by_trainer and config.epochs > 1)):
            old.measure([difference for part in parts for difference in part.score_old()])
        last = parts
        for part in parts:
            own, seconds = part.run(optimizer, lr, first=old.measured is None)
            norm = max(own, norm or 0.0)
            stepping += seconds
            updates.append(part)
    return UpdateResult(
        figures={
            "updates": len(updates),
            **pass_figures([update.sums for update in last]),
            **logp_diff_figures(old.measured, old.limits),
        },
        logp_diff=old.measured,
        grad_norm=norm,
        trained_tokens=sum(one.actions for update in last for one in update.trained.values()),
        passes=[batch for update in updates for batch in update.batches],
        seconds={"train": time.perf_counter() - started - stepping, "update": stepping},
    )


def _minibatches(
    credited: Sequence[TrainingSample], config: GrpoConfig, key: Sequence[int | str]
) -> list[Sequence[int]]:
    """Deal the groups of a step to minibatches (indexes of samples), by a shuffle of this epoch if there is more than one."""
    if config.minibatches == 1:
        return [range(len(credited))]
    groups: dict[int, list[int]] = {}
    for index, one in enumerate(credited):
        groups.setdefault(one.key[0], []).append(index)
    names = sorted(groups)
    order = np.random.default_rng(child_seed(config.seed, "minibatches", *key)).permutation(len(names)).tolist()
    parts = [order[start :: config.minibatches] for start in range(config.minibatches)]
    return [[index for group in part for index in groups[names[group]]] for part in parts if part]


class _OldLogprobs:
    """The denominators of the ratio: the sampler's log-probs, or the trainer's own from before the first update."""

    def __init__(self, loaded: LoadedModel, config: GrpoConfig) -> None:
        self.by_trainer = uses_trainer_logprobs(loaded, config)
        self.limits = logp_diff_limits(loaded, config)
        self.measured: LogpDiff | None = None
        self.stored: dict[int, Tensor] = {}  # index of the sample -> (A,)

    def measure(self, differences: Sequence[np.ndarray]) -> None:
        """Before the first update sampler and trainer have the same weights: a difference of more than rounding is a bug, and noise to
        train on. ``differences`` are those of all processes, so that all stop, or none."""
        self.measured = measure_logp_diff(differences)
        check_logp_diff(self.measured, self.limits)

    def of(self, indexes: Sequence[int], sampled: Tensor, logprobs: Tensor) -> Tensor:
        """(1, A) denominators of a microbatch. What was not stored is of the first update, whose ratio is 1."""
        if not self.by_trainer:
            return sampled
        if not self.stored:
            return logprobs.detach()
        return _row([self.stored[index] for index in indexes], logprobs)


class _Update:
    """One optimizer update on one minibatch."""

    batches: Sequence[MicroBatch]  # of the passes that :meth:`begin` cuts
    sums: UpdateSums

    def __init__(
        self,
        loaded: LoadedModel,
        config: GrpoConfig,
        credited: Mapping[int, TrainingSample],
        reference: Reference | None,
        old: _OldLogprobs,
        budget: PassBudget,
    ) -> None:
        self.budget = budget
        self.loaded, self.config, self.reference, self.old = loaded, config, reference, old
        self.n_tokens = sum(one.actions for one in credited.values())
        lengths: Counter[int] = Counter()
        for one in credited.values():
            lengths[one.episode] += one.actions
        self.n_episodes = len(lengths)
        self.part_of_episode = {
            index: one.actions / lengths[one.episode] for index, one in credited.items() if one.actions
        }
        # A token without advantage may be left out only if nothing else pulls at the weights: its gradient is zero. A loss of
        # somebody's own may have terms that no advantage scales.
        self.bonus = config.entropy_coef != 0
        own_loss = config.named.loss not in LOSSES.values()
        everything = reference is not None or self.bonus or config.observations > 0 or own_loss
        self.trained = {index: one for index, one in credited.items() if one.actions and (everything or one.live)}
        self.scored = max(1, sum(one.actions for one in self.trained.values()))
        indexes = list(self.trained)
        self.own = [indexes[place] for place in share(len(indexes))]  # this process's
        self.longest = max((int(one.positions[-1]) for one in self.trained.values()), default=0)
        self.shares = supports_tree(loaded.model) and self._reference_shares()

    def begin(self, tokens: int) -> None:
        """Cut the update into passes of so many tokens, with all sums at zero."""
        self.batches = microbatches(
            [self.trained[index] for index in self.own],
            budget=tokens,
            share=self.shares,
            vocabulary=vocabulary_size(self.loaded.model),
        )
        self.sums = UpdateSums(tokens=self.n_tokens, scored=self.scored, measured=self.reference is not None)

    def run(self, optimizer: torch.optim.Optimizer, lr: float, *, first: bool) -> tuple[float, float]:
        """Returns the gradient's norm, and the seconds that the optimizer took."""

        def update(tokens: int) -> tuple[float, float]:
            self.begin(tokens)
            with precision(self.loaded, self.config):
                return run_update(
                    self.loaded,
                    optimizer,
                    self.batches,
                    self.loss,
                    self.config,
                    lr,
                    before_step=partial(self.add_up, first=first),
                )

        return self.budget.spend(update, self.longest)

    @torch.no_grad()
    def score_old(self) -> list[np.ndarray]:
        """Store the trainer's log-probs of this minibatch, computed as its update will compute them. Returns how far the sampler's are."""
        scored = dict(gather(self.budget.spend(self._scored, self.longest)))
        if self.old.by_trainer:
            self.old.stored |= scored  # the next epoch may deal them anew
        return [(one - self.trained[index].logprobs).abs().numpy() for index, one in scored.items()]

    def _scored(self, tokens: int) -> list[tuple[int, Tensor]]:
        self.begin(tokens)
        scored: list[tuple[int, Tensor]] = []
        with precision(self.loaded, self.config):
            if is_sharded(self.loaded.model):
                idle_passes(self.loaded, len(self.batches), lambda loss: None)
            for batch in self.batches:
                scores = score_tokens(self.loaded.model, batch.to(self.loaded.device), self.config.sampling)
                parts = (
                    scores.logprobs.float()
                    .cpu()
                    .split([self.trained[self.own[row]].actions for row in batch.sequences])
                )
                scored += [(self.own[row], part) for row, part in zip(batch.sequences, parts, strict=True)]
        return scored

    def add_up(self, *, first: bool) -> None:
        """Add up the sums of all processes, in one message."""
        sums = self.sums
        mine = (sums.loss, sums.kl, sums.entropy, sum(len(each) for each in sums.differences))
        numbers, metrics, differences = zip(
            *gather([(mine, sums.metrics, sums.differences if first else [])]), strict=True
        )
        sums.loss, sums.kl, sums.entropy, tokens = (sum(column) for column in zip(*numbers, strict=True))
        if tokens != (wanted := sum(one.actions for one in self.trained.values())):
            raise TrainingError(
                f"the processes trained {tokens:.0f} of the {wanted} tokens of an update, so the gradient of a process is lost. No weight "
                "was changed. Look for a process that skips its share of the sequences"
            )
        sums.metrics = [one for part in metrics for one in part]
        if first:
            self.old.measure([one for part in differences for one in part])

    def loss(self, batch: MicroBatch) -> Tensor:
        """The part of this update's loss that a microbatch carries."""
        config = self.config
        scores = score_tokens(
            self.loaded.model,
            batch,
            config.sampling,
            entropy=True,
            differentiate=self.bonus,
            read=config.observations > 0,
        )
        assert scores.entropy is not None
        indexes = [self.own[row] for row in batch.sequences]
        samples = [self.trained[index] for index in indexes]
        sampled = _row([one.logprobs for one in samples], scores.logprobs)
        logprobs = scores.logprobs[None]
        old = self.old.of(indexes, sampled, logprobs)
        loss = self._policy_loss(batch, indexes, logprobs, old, sampled)
        if self.bonus:
            entropy = scores.entropy
            if any(one.entropy is not None for one in samples):
                entropy = entropy * _row([_entropy_shares(one) for one in samples], entropy)[0]
            loss = loss - config.entropy_coef * entropy.sum() / self.n_tokens
        if scores.read is not None:
            loss = loss - config.observations * scores.read.sum() / self.n_tokens
        if self.reference is not None:
            terms = kl_terms(logprobs, self._reference_logprobs(batch), kind=config.kl_estimator, sampler_logprobs=old)
            self.sums.kl += float(terms.detach().sum()) / self.n_tokens
            loss = loss + config.kl_coef * average(
                terms, config.named.average, weights=self._parts(indexes, logprobs), **self._step_sizes(batch)
            )
        self.sums.differences.append((logprobs.detach() - sampled).abs()[0].float().cpu().numpy())
        self.sums.entropy += float(scores.entropy.detach().sum())
        self.sums.loss += float(loss.detach())
        return loss

    def _policy_loss(
        self, batch: MicroBatch, indexes: Sequence[int], logprobs: Tensor, old: Tensor, sampled: Tensor
    ) -> Tensor:
        """The algorithm's own loss; its figures are added to the sums."""
        config, mask = self.config, torch.ones_like(logprobs, dtype=torch.bool)
        weights, mismatch = None, {}
        if config.correction is not None:
            # The ratio that is clipped is to the weights before this step; what the sampler adds is a factor of its own.
            weights, figures = CORRECTIONS[config.correction](old, sampled, mask, sequences=batch.labels.row[None])
            mismatch = {
                name: part_of_mean(name, value, logprobs.numel() / self.scored) for name, value in figures.items()
            }
        if (parts := self._parts(indexes, logprobs)) is not None:
            weights = parts if weights is None else parts * weights
        result = config.named.loss(
            logprobs,
            old,
            _row([_advantages(self.trained[index]) for index in indexes], logprobs),
            mask,
            clip_low=config.clips[0],
            clip_high=config.clips[1],
            weights=weights,
            **self._step_sizes(batch),
        )
        check_loss(result)
        metrics = {name: torch.as_tensor(value).detach() for name, value in result.metrics.items()}
        self.sums.metrics.append({**metrics, **mismatch})
        return result.loss

    def _step_sizes(self, batch: MicroBatch) -> dict[str, Any]:
        """The denominators of the whole step, and which sequence each token of a microbatch belongs to."""
        return {
            "n_tokens": self.n_tokens,
            "n_sequences": self.n_episodes,
            "max_tokens": self.config.longest_episode,
            "sequences": batch.labels.row[None],
        }

    def _parts(self, indexes: Sequence[int], like: Tensor) -> Tensor | None:
        """(1, A) share of its episode that a sequence has, for losses that average over sequences: an episode counts once."""
        if self.config.named.average != "sequences":
            return None
        return _row(
            [torch.full((self.trained[index].actions,), self.part_of_episode[index]) for index in indexes], like
        )

    def _reference_shares(self) -> bool:
        if self.reference is None:
            return True
        with self.reference() as model:
            return supports_tree(model)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """(1, A) of the same tokens under the frozen model."""
        assert self.reference is not None
        with self.reference() as model, tree_attention(model):
            return score_tokens(model, batch, self.config.sampling).logprobs[None]


def check_loss(result: object) -> None:
    """Hold an algorithm of one's own to its word: a LossResult whose loss is one number with a gradient. Raises ConfigError."""
    if not isinstance(result, LossResult) or result.loss.numel() != 1 or not result.loss.requires_grad:
        raise ConfigError(
            f"the algorithm's loss must return a LossResult whose loss is one number with a gradient, got {result!r:.80}"
        )


def _advantages(sample: TrainingSample) -> Tensor:
    assert sample.advantages is not None
    return sample.advantages


def _entropy_shares(sample: TrainingSample) -> Tensor:
    return torch.ones(sample.actions) if sample.entropy is None else sample.entropy


def _row(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """(1, A) of what the sequences of a microbatch hold per sampled token."""
    return torch.cat(list(parts)).to(dtype=torch.float32, device=like.device)[None]
