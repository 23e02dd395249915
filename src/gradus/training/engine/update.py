"""The training half of a GRPO step: sampled tokens and their advantages in, new weights and figures out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from gradus.algorithms import CORRECTIONS, combine_metrics, kl_loss
from gradus.core import child_seed
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.microbatches import MicroBatch, microbatches
from gradus.training.data.sequences import TrainingSample
from gradus.training.distributed.processes import gather, largest, share, total
from gradus.training.engine.forward import score_tokens, tree_attention
from gradus.training.engine.loss_step import TrainingError, precision, run_update, share_prefixes, vocabulary_size

__all__ = ["UpdateResult", "policy_update"]


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """Figures of all updates on one batch of episodes; those of the losses are means over the tokens of the last pass.

    ``logp_diff_max``: largest difference of sampler and trainer log-probs before the first update, nats; None if nothing was
    trained. ``passes``: microbatches of all passes, for reckoning the arithmetic.
    """

    figures: Mapping[str, float | None]
    logp_diff_max: float | None
    grad_norm: float | None
    skipped_updates: int
    trained_tokens: int
    passes: Sequence[MicroBatch]
    seconds: Mapping[str, float]


@dataclass
class _Sums:
    """What the microbatches of one update add up to."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    logp_diff: float = 0.0
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list[Mapping[str, Tensor]])


def policy_update(
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    credited: Sequence[TrainingSample],
    config: GrpoConfig,
    lr: float,
    *,
    reference: nn.Module | None = None,
    key: Sequence[int | str] = (),
    skip_above: float | None = None,
) -> UpdateResult:
    """Take ``epochs`` x ``minibatches`` updates. Groups stay whole; losses are divided by figures of a whole update.

    Updates whose gradient norm is above ``skip_above`` are skipped and counted.
    Raises TrainingError, before any weight changes, if the sampler's log-probs and the trainer's differ by more than
    ``max_logp_diff``.
    """
    started = time.perf_counter()
    updates_done: list[_Update] = []
    norm = logp_diff = None
    stepping, skipped = 0.0, 0
    for epoch in range(config.epochs):
        for part in _minibatches(credited, config, (*key, epoch)):
            update = _Update(loaded, config, part, reference, on_policy=not updates_done)
            if not update.trained:
                continue  # no group of this part has a signal: nothing to learn, and no momentum to follow
            norm, seconds = update.run(optimizer, lr, skip_above)
            skipped += skip_above is not None and norm > skip_above
            stepping += seconds
            logp_diff = update.sums.logp_diff if logp_diff is None else logp_diff
            updates_done.append(update)
    last = updates_done[-config.minibatches :]
    return UpdateResult(
        figures=_figures(last),
        logp_diff_max=logp_diff,
        grad_norm=norm,
        skipped_updates=skipped,
        trained_tokens=sum(one.actions for update in last for one in update.trained),
        passes=[batch for update in updates_done for batch in update.batches],
        seconds={"train": time.perf_counter() - started - stepping, "update": stepping},
    )


def _minibatches(
    credited: Sequence[TrainingSample], config: GrpoConfig, key: Sequence[int | str]
) -> list[list[TrainingSample]]:
    """Deal the groups of a step to minibatches, by a shuffle of this epoch where there is more than one."""
    if config.minibatches == 1:
        return [list(credited)]
    groups: dict[int, list[TrainingSample]] = {}
    for one in credited:
        groups.setdefault(one.key[0], []).append(one)
    names = sorted(groups)
    order = np.random.default_rng(child_seed(config.seed, "minibatches", *key)).permutation(len(names)).tolist()
    parts = [order[start :: config.minibatches] for start in range(config.minibatches)]
    return [[one for index in part for one in groups[names[index]]] for part in parts if part]


class _Update:
    """One optimizer update on one minibatch."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: GrpoConfig,
        credited: Sequence[TrainingSample],
        reference: nn.Module | None,
        *,
        on_policy: bool,
    ) -> None:
        self.loaded, self.config, self.reference, self.on_policy = loaded, config, reference, on_policy
        self.n_tokens = sum(one.actions for one in credited)
        self.n_sequences = len(credited)
        # Only where nothing else pulls at the weights may a token without advantage be left out: its gradient is zero.
        self.bonus = config.entropy_coef != 0
        everything = reference is not None or self.bonus
        self.trained = [one for one in credited if everything or one.live]
        self.scored = max(1, sum(one.actions for one in self.trained))
        self.own = [self.trained[index] for index in share(len(self.trained))]  # this process's
        self.batches = microbatches(
            self.own,
            budget=config.token_budget,
            share=share_prefixes(loaded.model),
            vocabulary=vocabulary_size(loaded.model),
        )
        self.sums = _Sums()

    def run(self, optimizer: torch.optim.Optimizer, lr: float, skip_above: float | None) -> tuple[float, float]:
        """Returns the gradient's norm, and the seconds that the optimizer took."""
        with precision(self.loaded, self.config):
            norm_and_seconds = run_update(
                self.loaded,
                optimizer,
                self.batches,
                self.loss,
                self.config,
                lr,
                before_step=self.check_logp_diff,
                skip_above=skip_above,
            )
        self.sums.loss, self.sums.kl, self.sums.entropy = total((self.sums.loss, self.sums.kl, self.sums.entropy))
        self.sums.metrics = gather(self.sums.metrics)
        return norm_and_seconds

    def check_logp_diff(self) -> None:
        """Before the first update, sampler and trainer are the same model: a difference is a bug, and training on it is noise."""
        self.sums.logp_diff = largest(self.sums.logp_diff)  # all processes stop, or none
        expected = self.config.correction is not None
        if self.on_policy and not expected and self.sums.logp_diff > self.config.max_logp_diff:
            raise TrainingError(
                f"sampler and trainer disagree: log-probs of the same tokens differ by up to {self.sums.logp_diff:.2g} nats before "
                f"the first update, expected at most {self.config.max_logp_diff:.2g}. No weight was changed. Sample and train in "
                "the same dtype (float32 agrees best), or raise max_logp_diff and use a loss with importance correction"
            )

    def loss(self, batch: MicroBatch) -> Tensor:
        """The part of this update's loss that a microbatch carries."""
        config = self.config
        scores = score_tokens(self.loaded.model, batch, config.sampling, entropy=True, differentiate=self.bonus)
        assert scores.entropy is not None
        chosen = [self.own[index] for index in batch.sequences]
        sampled = _row([one.logprobs for one in chosen], scores.logprobs)
        logprobs = scores.logprobs[None]
        mask = torch.ones_like(logprobs, dtype=torch.bool)
        advantages = _row([_advantages(one) for one in chosen], scores.logprobs)
        old_logprobs, mismatch = sampled, {}
        if config.correction is not None:
            # The ratio that is clipped is to the weights before this update; what the sampler adds is a weight of its own.
            weights, mismatch_metrics = CORRECTIONS[config.correction](logprobs, sampled, mask)
            advantages, old_logprobs = advantages * weights, logprobs.detach()
            mismatch = {
                name: _part(name, value, logprobs.numel() / self.scored) for name, value in mismatch_metrics.items()
            }
        result = config.named.loss(
            logprobs,
            old_logprobs,
            advantages,
            mask,
            n_tokens=self.n_tokens,
            n_sequences=self.n_sequences,
            max_tokens=config.sampling.max_new_tokens * (config.max_turns or 1),
            sequences=batch.labels.row[None],
            clip_low=config.clips[0],
            clip_high=config.clips[1],
        )
        loss = result.loss
        if self.bonus:
            loss = loss - config.entropy_coef * scores.entropy.sum() / self.n_tokens
        if self.reference is not None:
            distance = kl_loss(
                logprobs,
                self._reference_logprobs(batch),
                mask,
                n_tokens=self.n_tokens,
                kind=config.kl_estimator,
                sampler_logprobs=sampled,
            )
            self.sums.kl += float(distance.detach())
            loss = loss + config.kl_coef * distance
        self.sums.logp_diff = max(self.sums.logp_diff, float((logprobs.detach() - sampled).abs().max()))
        self.sums.entropy += float(scores.entropy.detach().sum())
        self.sums.loss += float(loss.detach())
        self.sums.metrics.append({**result.metrics, **mismatch})
        return loss

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """(1, A) of the same tokens under the frozen model."""
        assert self.reference is not None
        with tree_attention(self.reference):
            return score_tokens(self.reference, batch, self.config.sampling).logprobs[None]


def _advantages(sample: TrainingSample) -> Tensor:
    assert sample.advantages is not None
    return sample.advantages


def _row(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """(1, A) of what the sequences of a microbatch hold per sampled token."""
    return torch.cat(list(parts)).to(dtype=torch.float32, device=like.device)[None]


def _part(name: str, value: Tensor, share: float) -> Tensor:
    """A microbatch's part of a mean over the tokens of an update; largest values are not added up."""
    return value if name.endswith("_max") else value * share


def _figures(updates: Sequence[_Update]) -> dict[str, float | None]:
    """Means over the updates of a pass; all denominators are those of the whole update, so microbatches have added up."""
    if not updates:
        return dict.fromkeys(("loss", "kl", "entropy", "clip_fraction", "ratio_max"))
    metrics = [combine_metrics(update.sums.metrics) for update in updates]
    count = len(updates)
    measured = updates[0].reference is not None
    return {
        "loss": sum(update.sums.loss for update in updates) / count,
        "kl": sum(
            update.sums.kl if measured else one["approx_kl"] for update, one in zip(updates, metrics, strict=True)
        )
        / count,
        "entropy": sum(update.sums.entropy / update.scored for update in updates) / count,
        "clip_fraction": sum(one["clip_fraction"] for one in metrics) / count,
        "ratio_max": max(one["ratio_max"] for one in metrics),
        **{name: metrics[-1][name] for name in metrics[-1] if name.startswith("mismatch_")},
    }
