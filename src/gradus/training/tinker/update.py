"""The training half of a GRPO step on a server: plan and objective are those of a local update, passes and optimizer are remote."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from gradus.policies.tinker.policy import TinkerPolicy
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import Samples, TrainingSample, ints, split
from gradus.training.engine.objective import UpdatePlan, batch_tokens, flat_row, kl_loss, plan_epoch, policy_loss
from gradus.training.engine.update import UpdateResult
from gradus.training.engine.update_figures import (
    SERVER_LIMITS,
    UpdateSums,
    check_logp_diff,
    logp_diff_figures,
    measure_logp_diff,
    pass_figures,
)
from gradus.training.tinker.remote import RemoteModel

ByIndex = Mapping[int, Tensor]  # log-probs of a sample, by its index in the step


def objective(
    config: GrpoConfig, plan: UpdatePlan, logprobs: ByIndex, old: ByIndex, reference: ByIndex | None = None
) -> tuple[Sequence[Tensor], UpdateSums]:
    """The gradient (A,) of the loss that a local update has with respect to each sample's log-probs (A,) of trained tokens, and its figures.

    Args:
        logprobs: with the weights as they are.
        old: from before the first update of the step.
        reference: of the model that KL is measured to.
    """
    indexes = list(plan.samples)
    lengths = [sample.actions for sample in plan.samples.values()]

    def row(values: ByIndex) -> Tensor:
        return flat_row([values[index] for index in indexes], torch.zeros(0))

    scored = row(logprobs).requires_grad_()
    sequences = torch.arange(len(indexes)).repeat_interleave(torch.tensor(lengths))[None]
    tokens = batch_tokens(config, plan, indexes, scored, row(old), sequences)
    loss, metrics = policy_loss(config, plan, tokens)
    kl = None
    if reference is not None:
        term, kl = kl_loss(config, plan, tokens, row(reference))
        loss = loss + term
    (gradient,) = torch.autograd.grad(loss, scored)
    value = float(loss.detach())
    sums = UpdateSums(loss=value, kl=kl, entropy=None, metrics=[metrics], tokens=plan.n_tokens, scored=plan.scored)
    return split(gradient[0], lengths), sums


def remote_update(
    remote: RemoteModel,
    credited: Samples,
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
    # The first epoch has every sample that is trained; later ones deal the same ones anew.
    samples = {index: sample for plan in epochs[0] for index, sample in plan.samples.items()}
    scored: dict[int, Tensor] = {}
    if samples:
        scored = _scored(remote, samples)
    old = _trained(samples, scored)
    logp_diff = measure_logp_diff([(old[index] - sample.logprobs).abs().numpy() for index, sample in samples.items()])
    check_logp_diff(logp_diff, SERVER_LIMITS)
    reference = None if base is None else _trained(samples, _scores(samples, base))
    sums: list[UpdateSums] = []
    norms: list[float | None] = []
    for plan in chain.from_iterable(epochs):
        if sums:  # the weights have changed since all samples were scored
            scored = _scored(remote, plan.samples)
        gradients, figures = objective(config, plan, _trained(plan.samples, scored), old, reference)
        denominators = [scored[index] for index in plan.samples]
        norm = remote.train(list(plan.samples.values()), denominators, gradients, config, lr)
        norms.append(norm)
        sums.append(figures)
    measured = [norm for norm in norms if norm is not None]
    return UpdateResult(
        figures={
            "updates": len(sums),
            **pass_figures(sums[len(sums) - len(epochs[-1]) :]),
            **logp_diff_figures(logp_diff, SERVER_LIMITS),
        },
        logp_diff=logp_diff,
        grad_norm=max(measured, default=None),
        trained_tokens=sum(plan.scored for plan in epochs[-1]),
        seconds={"train": time.perf_counter() - started, "update": 0.0},
    )


def _scored(remote: RemoteModel, samples: Mapping[int, TrainingSample]) -> dict[int, Tensor]:
    """(T - 1,) log-probs of each sample under the weights as they are."""
    return dict(zip(samples, remote.forward(list(samples.values())), strict=True))


def _trained(samples: Mapping[int, TrainingSample], scored: ByIndex) -> dict[int, Tensor]:
    """(A,) log-probs of the trained tokens, of (T - 1,) log-probs of all behind the first."""
    return {index: scored[index][sample.positions - 1] for index, sample in samples.items()}


def _scores(samples: Mapping[int, TrainingSample], model: TinkerPolicy) -> dict[int, Tensor]:
    """(T - 1,) log-probs under another model."""
    scored = model.prompt_logprobs([ints(sample.ids) for sample in samples.values()])
    return dict(zip(samples, map(torch.tensor, scored), strict=True))
