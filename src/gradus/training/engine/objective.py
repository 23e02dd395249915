"""The objective of an update, wherever its log-probs are computed: what is trained, its denominators, and the loss of log-probs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gradus.algorithms import CORRECTIONS, LOSSES, LossResult, average, kl_terms
from gradus.core import ConfigError, child_seed
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Samples, TrainingSample
from gradus.training.distributed.processes import share
from gradus.training.engine.update_figures import part_of_mean


@frozen_record
class UpdatePlan:
    """What one optimizer update trains, and what its losses are divided by; ``local`` alone differs between processes.

    ``samples``: those that are trained, by their index in the step. ``local``: indexes of this process's share. ``n_tokens`` and
    ``n_episodes``: of the whole minibatch, samples without a gradient too, whose indexes are ``dealt``. ``episode_shares``: which share of
    its episode's tokens a sample has.
    """

    samples: Mapping[int, TrainingSample]
    local: Sequence[int]
    dealt: Sequence[int]
    n_tokens: int
    n_episodes: int
    episode_shares: Mapping[int, float]

    @property
    def scored(self) -> int:
        """Tokens that are trained."""
        return sum(sample.actions for sample in self.samples.values())

    @property
    def longest(self) -> int:
        """Tokens of the longest sample that must be computed."""
        return max((sample.reach for sample in self.samples.values()), default=0)


def plan_epoch(credited: Samples, config: GrpoConfig, key: Sequence[int | str]) -> list[UpdatePlan]:
    """The updates of an epoch that train anything: without a signal there is nothing to learn, and no momentum to follow."""
    plans: list[UpdatePlan] = []
    for indexes in _minibatches(credited, config, key):
        plan = plan_update({index: credited[index] for index in indexes}, config)
        if plan.samples:
            plans.append(plan)
    return plans


def _minibatches(credited: Samples, config: GrpoConfig, key: Sequence[int | str]) -> list[Sequence[int]]:
    """Deals the groups of a step to minibatches (indexes of samples), by a shuffle of this epoch if there is more than one."""
    if config.minibatches == 1:
        return [range(len(credited))]
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(credited):
        groups.setdefault(sample.key[0], []).append(index)
    names = sorted(groups)
    rng = np.random.default_rng(child_seed(config.seed, "minibatches", *key))
    places: list[int] = rng.permutation(len(names)).tolist()
    order = [names[place] for place in places]
    minibatches: list[Sequence[int]] = []
    for start in range(min(config.minibatches, len(order))):
        dealt = order[start :: config.minibatches]
        minibatches.append([index for name in dealt for index in groups[name]])
    return minibatches


def plan_update(minibatch: Mapping[int, TrainingSample], config: GrpoConfig) -> UpdatePlan:
    """Says what is trained of the samples of a minibatch (by their index in the step), and the denominators of its losses."""
    lengths: Counter[int] = Counter()
    for sample in minibatch.values():
        lengths[sample.episode] += sample.actions
    trains_all = _trains_all(config)
    samples = {index: sample for index, sample in minibatch.items() if sample.actions and (trains_all or sample.live)}
    indexes = list(samples)
    return UpdatePlan(
        samples=samples,
        local=[indexes[place] for place in share(len(indexes))],
        dealt=list(minibatch),
        n_tokens=sum(lengths.values()),
        n_episodes=len(lengths),
        episode_shares={index: sample.actions / lengths[sample.episode] for index, sample in samples.items()},
    )


def _trains_all(config: GrpoConfig) -> bool:
    """Says whether samples without an advantage move the weights too.

    They are left out only if nothing else pulls at the weights: their gradient is then zero. A loss of somebody's own may have terms that
    no advantage scales.
    """
    other_terms = (config.kl_coef, config.entropy_coef, config.observations)
    return any(other_terms) or config.named.loss not in LOSSES.values()


@frozen_record
class BatchTokens:
    """The sampled tokens of a microbatch, (1, A) float32 each, and the denominators of the update.

    ``shares``: the share of its episode that a token's sample has; None unless the loss averages over sequences.
    """

    logprobs: Tensor
    sampled: Tensor
    old: Tensor
    advantages: Tensor
    shares: Tensor | None
    sizes: Json


def policy_loss(config: GrpoConfig, plan: UpdatePlan, tokens: BatchTokens) -> tuple[Tensor, dict[str, Tensor]]:
    """The algorithm's own loss, and what it and the correction of the sampler measure."""
    mask = torch.ones_like(tokens.logprobs, dtype=torch.bool)
    weights = tokens.shares
    mismatch: dict[str, Tensor] = {}
    if config.correction is not None:
        # The ratio that is clipped is to the weights before this step; what the sampler adds is a factor of its own.
        correct = CORRECTIONS[config.correction]
        factors, figures = correct(tokens.old, tokens.sampled, mask, sequences=tokens.sizes["sequences"])
        weights = factors if weights is None else weights * factors
        token_share = mask.numel() / plan.scored
        mismatch = {name: part_of_mean(name, value, token_share) for name, value in figures.items()}
    clip_low, clip_high = config.clips
    result = config.named.loss(
        tokens.logprobs,
        tokens.old,
        tokens.advantages,
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        weights=weights,
        **tokens.sizes,
    )
    check_loss(result)
    metrics = {name: torch.as_tensor(value).detach() for name, value in result.metrics.items()}
    return result.loss, {**metrics, **mismatch}


def kl_loss(config: GrpoConfig, plan: UpdatePlan, tokens: BatchTokens, reference: Tensor) -> tuple[Tensor, float]:
    """The term of the loss for the divergence from a reference, (1, A) log-probs, and the divergence itself, nats a token."""
    terms = kl_terms(tokens.logprobs, reference, sampler_logprobs=tokens.old)
    mean = average(terms, config.named.average, weights=tokens.shares, **tokens.sizes)
    return config.kl_coef * mean, float(terms.detach().sum()) / plan.n_tokens


def check_loss(result: object) -> None:
    """Raises ConfigError unless an algorithm of one's own gives a LossResult whose loss is one number with a gradient."""
    if not isinstance(result, LossResult) or result.loss.numel() != 1 or not result.loss.requires_grad:
        raise ConfigError(
            f"the algorithm's loss must return a LossResult whose loss is one number with a gradient, got {result!r:.80}"
        )


def flat_row(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """(1, A) float32 of what the samples of a microbatch hold for each sampled token."""
    return torch.cat(list(parts)).to(dtype=torch.float32, device=like.device)[None]


def batch_tokens(
    config: GrpoConfig,
    plan: UpdatePlan,
    indexes: Sequence[int],
    logprobs: Tensor,
    old: Tensor,
    sequences: Tensor,
) -> BatchTokens:
    """The sampled tokens of some samples of a plan, with what the objective needs of them.

    Args:
        indexes: which samples.
        logprobs: (1, A) of their tokens, with a gradient.
        old: (1, A) denominators of the ratio.
        sequences: (1, A) integer names of the sample of each token.
    """
    samples = [plan.samples[index] for index in indexes]
    shares = None
    if config.named.average == "sequences":  # an episode counts once, however often it restarts
        parts = [torch.full((plan.samples[index].actions,), plan.episode_shares[index]) for index in indexes]
        shares = flat_row(parts, logprobs)
    return BatchTokens(
        logprobs=logprobs,
        sampled=flat_row([sample.logprobs for sample in samples], logprobs),
        old=old,
        advantages=flat_row([sample.credited for sample in samples], logprobs),
        shares=shares,
        sizes={
            "n_tokens": plan.n_tokens,
            "n_sequences": plan.n_episodes,
            "max_tokens": config.longest_episode,
            "sequences": sequences,
        },
    )
