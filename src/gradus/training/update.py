"""The training half of a GRPO step: sampled tokens and their advantages in, new weights and figures out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from gradus.algorithms import LOSSES, kl_loss, kl_values
from gradus.policies.loading import LoadedModel
from gradus.policies.sampling import SamplingConfig
from gradus.training.batches import MicroBatch, microbatches
from gradus.training.forward import score_tokens
from gradus.training.grpo_config import GrpoConfig
from gradus.training.sequences import TrainingSequence
from gradus.training.trainer import TrainingError, precision, run_update, share_prefixes, vocabulary_size

__all__ = ["Credited", "UpdateResult", "policy_update"]


@dataclass(frozen=True, kw_only=True)
class Credited:
    """A training sequence with the advantage (A,) of each of its sampled tokens."""

    sequence: TrainingSequence
    advantages: np.ndarray

    @property
    def live(self) -> bool:
        """Whether any token has an advantage; without one the policy gradient is exactly zero."""
        return bool(np.any(self.advantages != 0.0))


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """Figures of all updates on one batch of episodes; those of the losses are means over the tokens of the last pass.

    ``sampler_gap``: largest difference of sampler and trainer log-probs before the first update, nats; None if nothing was
    trained. ``passes``: microbatches of all passes, for reckoning the arithmetic.
    """

    figures: Mapping[str, float | None]
    sampler_gap: float | None
    grad_norm: float | None
    trained_tokens: int
    passes: Sequence[MicroBatch]
    seconds: Mapping[str, float]


@dataclass
class _Sums:
    """Sums over the tokens of one pass."""

    loss: float = 0.0
    metrics: Counter[str] = field(default_factory=Counter[str])
    kl: float = 0.0
    entropy: float = 0.0
    tokens: int = 0
    ratio_max: float = 0.0
    gap: float = 0.0


def policy_update(
    loaded: LoadedModel,
    optimiser: torch.optim.Optimizer,
    credited: Sequence[Credited],
    config: GrpoConfig,
    rate: float,
    *,
    reference: nn.Module | None = None,
    key: Sequence[int | str] = (),
) -> UpdateResult:
    """Take ``epochs`` x ``minibatches`` updates. Groups stay whole; losses are divided by figures of a whole update.

    Raises TrainingError, before any weight changes, if the sampler's log-probs and the trainer's differ by more than
    ``gap_limit``.
    """
    started = time.perf_counter()
    done: list[_Update] = []
    norm = gap = None
    stepping = 0.0
    for epoch in range(config.epochs):
        for part in _minibatches(credited, config, (*key, epoch)):
            update = _Update(loaded, config, part, reference, on_policy=not done)
            if not update.batches:
                continue  # no group of this part has a signal: nothing to learn, and no momentum to follow
            norm, seconds = update.run(optimiser, rate)
            stepping += seconds
            gap = update.sums.gap if gap is None else gap
            done.append(update)
    last = done[-config.minibatches :]
    return UpdateResult(
        figures=_figures([update.sums for update in last]),
        sampler_gap=gap,
        grad_norm=norm,
        trained_tokens=sum(update.sums.tokens for update in last),
        passes=[batch for update in done for batch in update.batches],
        seconds={"train": time.perf_counter() - started - stepping, "update": stepping},
    )


def _figures(parts: Sequence[_Sums]) -> dict[str, float | None]:
    """Losses add up over microbatches of an update; over updates they are averaged. The rest are means over tokens."""
    tokens = sum(part.tokens for part in parts)
    if not tokens:
        return dict.fromkeys(("loss", "kl", "entropy", "clip_fraction", "ratio_max"))
    return {
        "loss": sum(part.loss for part in parts) / len(parts),
        "kl": sum(part.kl for part in parts) / tokens,
        "entropy": sum(part.entropy for part in parts) / tokens,
        "clip_fraction": sum(part.metrics["clip_fraction"] for part in parts) / tokens,
        "ratio_max": max(part.ratio_max for part in parts),
    }


def _minibatches(credited: Sequence[Credited], config: GrpoConfig, key: Sequence[int | str]) -> list[list[Credited]]:
    """Deal the groups of a step to minibatches, by a shuffle of this epoch where there is more than one."""
    if config.minibatches == 1:
        return [list(credited)]
    groups: dict[int, list[Credited]] = {}
    for one in credited:
        groups.setdefault(one.sequence.key[0], []).append(one)
    names = sorted(groups)
    order = np.random.default_rng(child_seed(config.seed, "minibatches", *key)).permutation(len(names)).tolist()
    parts = [order[start :: config.minibatches] for start in range(config.minibatches)]
    return [[one for index in part for one in groups[names[index]]] for part in parts if part]


class _Update:
    """One optimiser update on one minibatch."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: GrpoConfig,
        credited: Sequence[Credited],
        reference: nn.Module | None,
        *,
        on_policy: bool,
    ) -> None:
        self.loaded, self.config, self.reference, self.on_policy = loaded, config, reference, on_policy
        self.n_tokens = sum(one.sequence.actions for one in credited)
        self.n_sequences = len(credited)
        # Only where nothing else pulls at the weights may a token without advantage be left out: its gradient is zero.
        everything = reference is not None or config.entropy_coef != 0
        self.trained = [one for one in credited if everything or one.live]
        self.batches = microbatches(
            [one.sequence for one in self.trained],
            budget=config.token_budget,
            share=share_prefixes(loaded.model),
            vocabulary=vocabulary_size(loaded.model),
        )
        self.sums = _Sums()

    def run(self, optimiser: torch.optim.Optimizer, rate: float) -> tuple[float, float]:
        """Returns the gradient's norm, and the seconds that the optimiser took."""
        with precision(self.loaded, self.config):
            return run_update(
                self.loaded, optimiser, self.batches, self.loss, self.config, rate, before_step=self.check_gap
            )

    def check_gap(self) -> None:
        """Before the first update, sampler and trainer are the same model: a gap is a bug, and training on it is noise."""
        if self.on_policy and self.sums.gap > self.config.gap_limit:
            raise TrainingError(
                f"sampler and trainer disagree: log-probs of the same tokens differ by up to {self.sums.gap:.2g} nats before "
                f"the first update, expected at most {self.config.gap_limit:.2g}. No weight was changed. Play and train in "
                "the same dtype (float32 agrees best), or raise gap_limit and use a loss with importance correction"
            )

    def loss(self, batch: MicroBatch) -> Tensor:
        """The part of this update's loss that a microbatch carries."""
        config = self.config
        scores = score_tokens(self.loaded.model, batch, config.sampling, entropy=config.entropy_coef != 0)
        chosen = [self.trained[index] for index in batch.sequences]
        sampled = _flat([one.sequence.logprobs for one in chosen], scores.logprobs)
        mask = batch.mask()
        result = LOSSES[config.loss](
            batch.pad(scores.logprobs),
            batch.pad(sampled),
            batch.pad(_flat([one.advantages for one in chosen], scores.logprobs)),
            mask,
            n_tokens=self.n_tokens,
            n_sequences=self.n_sequences,
            **self._clips(),
        )
        loss = result.loss
        if scores.entropy is not None:
            loss = loss - config.entropy_coef * scores.entropy.sum() / self.n_tokens
        if self.reference is not None:
            loss = loss + self._kl(batch, scores.logprobs)
        self._count(batch, scores, sampled, result, loss)
        return loss

    def _clips(self) -> dict[str, float]:
        given = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        return {name: value for name, value in given.items() if value is not None}


def _flat(parts: Sequence[np.ndarray], like: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(dtype=torch.float32, device=like.device)
