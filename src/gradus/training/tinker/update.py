"""The training half of a GRPO step on a server: plan and objective are those of a local update, passes and optimizer are remote."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradus.algorithms import LOSSES, PolicyLoss, average, kl_terms
from gradus.policies.tinker.policy import TinkerPolicy
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, ints, split
from gradus.training.engine.objective import BatchTokens, UpdatePlan, batch_tokens, plan_epoch, policy_loss
from gradus.training.engine.update import UpdateResult
from gradus.training.engine.update_figures import (
    SERVER_LIMITS,
    LogpDiff,
    UpdateSums,
    check_logp_diff,
    logp_diff_figures,
    measure_logp_diff,
    pass_figures,
)
from gradus.training.tinker.remote import SURROGATE, NamedLoss, RemoteModel, TrainedTokens

# Losses whose gradient a server's loss of this name has too; of all others the gradient is computed here.
_NAMES: Mapping[PolicyLoss, str] = {
    LOSSES["grpo"]: "ppo",
    LOSSES["dr_grpo"]: "ppo",
    LOSSES["dapo"]: "ppo",
    LOSSES["cispo"]: "cispo",
    LOSSES["rloo"]: SURROGATE.name,
}


def named_loss(config: GrpoConfig) -> NamedLoss | None:
    """The server's own loss with the gradient of these settings; None if there is none."""
    other_terms = config.kl_coef or config.observations or config.correction
    name = _NAMES.get(config.named.loss)
    if other_terms or name is None:
        return None
    low, high = config.clips
    clip = {"clip_low_threshold": 1.0 - low, "clip_high_threshold": 1.0 + high}
    return NamedLoss(name=name, settings={} if name == SURROGATE.name else clip)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The samples of an update, with log-probs of all their tokens behind the first in one row.

    ``trained``: where the trained tokens stand in it; ``read``: those that the environment showed.
    """

    plan: UpdatePlan
    logprobs: Tensor
    trained: Tensor
    read: Tensor
    sequences: Tensor

    @property
    def trained_row(self) -> Tensor:
        """(1, A) log-probs of the trained tokens."""
        return self.logprobs[self.trained][None]

    @property
    def samples(self) -> list[TrainingSample]:
        """The samples, in the order of the row."""
        return list(self.plan.samples.values())


def _batch(plan: UpdatePlan, logprobs: Sequence[Tensor]) -> _Batch:
    """``logprobs``: (T - 1,) of each sample of the plan."""
    trained: list[Tensor] = []
    read: list[Tensor] = []
    start = 0
    for sample in plan.samples.values():
        trained.append(sample.positions - 1 + start)
        if sample.read is not None:
            read.append(sample.read - 1 + start)
        start += len(sample) - 1
    actions = torch.tensor([sample.actions for sample in plan.samples.values()])
    return _Batch(
        plan=plan,
        logprobs=torch.cat(list(logprobs)),
        trained=torch.cat(trained),
        read=torch.cat(read) if read else torch.zeros(0, dtype=torch.int64),
        sequences=torch.arange(len(actions)).repeat_interleave(actions)[None],
    )


@dataclass(frozen=True, kw_only=True)
class _Objective:
    """The gradient of an update's loss with respect to each log-prob of the row, and its figures."""

    gradient: Tensor
    sums: UpdateSums


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What all updates of a step share. ``old`` and ``reference``: (A,) log-probs of a sample's trained tokens, by its index."""

    config: GrpoConfig
    old: Mapping[int, Tensor]
    reference: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])

    def tokens(self, batch: _Batch, logprobs: Tensor) -> BatchTokens:
        """The trained tokens of a batch, with ``logprobs`` (1, A)."""
        indexes = list(batch.plan.samples)
        old = torch.cat([self.old[index] for index in indexes]).to(logprobs)[None]
        return batch_tokens(self.config, batch.plan, indexes, logprobs, old, batch.sequences)

    def objective(self, batch: _Batch) -> _Objective:
        """The loss of a batch, as a local update computes it, and its gradient."""
        config, plan = self.config, batch.plan
        row = batch.logprobs.clone().requires_grad_()
        tokens = self.tokens(batch, row[batch.trained][None])
        loss, metrics = policy_loss(config, plan, tokens)
        if config.observations:
            loss = loss - config.observations * row[batch.read].sum() / plan.n_tokens
        kl = None
        if self.reference:
            reference = torch.cat([self.reference[index] for index in plan.samples])[None]
            terms = kl_terms(tokens.logprobs, reference, kind="k3", sampler_logprobs=tokens.old)
            kl = float(terms.detach().sum()) / plan.n_tokens
            loss = loss + config.kl_coef * average(terms, config.named.average, weights=tokens.shares, **tokens.sizes)
        (gradient,) = torch.autograd.grad(loss, row)
        value = float(loss.detach())
        sums = UpdateSums(loss=value, kl=kl, entropy=None, metrics=[metrics], tokens=plan.n_tokens, scored=plan.scored)
        return _Objective(gradient=gradient, sums=sums)

    def shares(self, batch: _Batch) -> Tensor:
        """(A,) the share that each trained token has in the average of the loss."""
        tokens = self.tokens(batch, batch.trained_row)
        values = torch.ones_like(tokens.logprobs).requires_grad_()
        mean = average(values, self.config.named.average, weights=tokens.shares, **tokens.sizes)
        (shares,) = torch.autograd.grad(mean, values)
        return shares[0]


def remote_update(
    remote: RemoteModel,
    credited: Sequence[TrainingSample],
    config: GrpoConfig,
    lr: float,
    *,
    key: Sequence[int | str] = (),
    base: TinkerPolicy | None = None,
) -> UpdateResult:
    """Takes ``epochs`` x ``minibatches`` updates on the server, as :func:`~gradus.training.engine.update.policy_update` does here.

    ``base``: the model that KL is measured to. Entropy is None: a server gives log-probs of the tokens that it is sent, and no others.

    Raises:
        TrainingError: the server's sampler and its trainer differ by more than another engine explains.
    """
    started = time.perf_counter()
    epochs = [plan_epoch(credited, config, (*key, epoch)) for epoch in range(config.epochs)]
    samples = {index: sample for plan in epochs[0] for index, sample in plan.samples.items()}
    loss = named_loss(config)
    before: Mapping[int, Tensor] = {}
    logp_diff: LogpDiff | None = None
    # The sampler's log-probs are the trainer's if both are one function; a server's own loss then needs no pass before it.
    if samples and (loss is None or not remote.reduction.exact):
        before = dict(zip(samples, remote.forward(list(samples.values())), strict=True))
        logp_diff = _check_difference(samples, before)
    step = _Step(
        config=config,
        old=_old_logprobs(samples, {} if remote.reduction.exact else before),
        reference=_reference(samples, base),
    )
    results: list[_Result] = []
    for plan in (plan for plans in epochs for plan in plans):
        if loss is None:
            scored = (
                remote.forward(list(plan.samples.values())) if results else [before[index] for index in plan.samples]
            )
            result = _take_surrogate(remote, step, _batch(plan, scored), lr)
        else:
            result = _take_named(remote, step, plan, loss, lr)
        logp_diff = logp_diff or _check_difference(plan.samples, result.logprobs)
        results.append(result)
    last_pass = results[len(results) - len(epochs[-1]) :]
    norms = [result.norm for result in results if result.norm is not None]
    return UpdateResult(
        figures={
            "updates": len(results),
            **pass_figures([result.sums for result in last_pass]),
            **logp_diff_figures(logp_diff, SERVER_LIMITS),
        },
        logp_diff=logp_diff,
        grad_norm=max(norms) if norms and len(norms) == len(results) else None,
        trained_tokens=sum(plan.scored for plan in epochs[-1]),
        passes=(),
        seconds={"train": time.perf_counter() - started, "update": 0.0},
    )


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The result of one update. ``logprobs``: from before it, (T - 1,) by a sample's index. ``norm``: of the gradient, if it is known."""

    sums: UpdateSums
    norm: float | None
    logprobs: Mapping[int, Tensor]


def _take_surrogate(remote: RemoteModel, step: _Step, batch: _Batch, lr: float) -> _Result:
    """One update by the gradient that is computed here."""
    lengths = [len(sample) - 1 for sample in batch.samples]
    objective = step.objective(batch)
    rows = zip(split(batch.logprobs, lengths), split(-objective.gradient, lengths), strict=True)
    tokens = [TrainedTokens(denominators=logprobs, advantages=advantages) for logprobs, advantages in rows]
    logprobs, norm = remote.train(batch.samples, tokens, SURROGATE, step.config, lr)
    by_index = dict(zip(batch.plan.samples, logprobs, strict=True))
    return _Result(sums=objective.sums, norm=norm, logprobs=by_index)


def _take_named(remote: RemoteModel, step: _Step, plan: UpdatePlan, loss: NamedLoss, lr: float) -> _Result:
    """One update by the server's own loss. What the average gives a token is a factor of its advantage."""
    samples = list(plan.samples.values())
    batch = _batch(plan, [torch.zeros(len(sample) - 1) for sample in samples])
    advantages = split(
        step.shares(batch) * step.tokens(batch, batch.trained_row).advantages[0], [s.actions for s in samples]
    )
    tokens: list[TrainedTokens] = []
    for (index, sample), values in zip(plan.samples.items(), advantages, strict=True):
        places = sample.positions - 1
        empty = torch.zeros(len(sample) - 1)
        tokens.append(
            TrainedTokens(
                denominators=empty.index_copy(0, places, step.old[index].float()),
                advantages=empty.index_copy(0, places, values),
            )
        )
    logprobs, norm = remote.train(samples, tokens, loss, step.config, lr)
    # The loss and its figures, as a local update measures them, from the log-probs that came back.
    sums = step.objective(_batch(plan, logprobs)).sums
    return _Result(sums=sums, norm=norm, logprobs=dict(zip(plan.samples, logprobs, strict=True)))


def _old_logprobs(samples: Mapping[int, TrainingSample], before: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """(A,) denominators of the ratio by a sample's index: the trainer's from before the first update, or else the sampler's."""
    return {
        index: before[index][sample.positions - 1] if index in before else sample.logprobs.float()
        for index, sample in samples.items()
    }


def _reference(samples: Mapping[int, TrainingSample], base: TinkerPolicy | None) -> dict[int, Tensor]:
    """(A,) log-probs under the base model by a sample's index; empty without a base."""
    if base is None or not samples:
        return {}
    scored = base.prompt_logprobs([ints(sample.ids) for sample in samples.values()])
    return {
        index: torch.tensor(logprobs)[sample.positions - 1]
        for (index, sample), logprobs in zip(samples.items(), scored, strict=True)
    }


def _check_difference(samples: Mapping[int, TrainingSample], scored: Mapping[int, Tensor]) -> LogpDiff | None:
    """How far the sampler's log-probs are from the trainer's. Raises TrainingError if that is more than another engine explains."""
    differences = [
        (scored[index][sample.positions - 1] - sample.logprobs).abs().numpy() for index, sample in samples.items()
    ]
    measured = measure_logp_diff(differences)
    check_logp_diff(measured, SERVER_LIMITS)
    return measured
