"""The updates of a step, again: who is dealt what, the log-probs and factor of each token, the loss, and terms by a plain pass (laws 1, 3, 4 and 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_seed
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, split
from gradus.training.engine.objective import BatchTokens, UpdatePlan
from gradus.training.engine.prepare import precision
from gradus.training.engine.reference import Reference
from gradus.training.engine.update import UpdateTrainer, microbatch_loss
from gradus.training.laws.draws import STRIDE, beginning, plain_logprobs, plain_scores, read_logprobs
from gradus.training.laws.formulas import FORMULAS, Formula, remaining, weigh
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, Samples, worst_of
from gradus.training.laws.step import StepLaws

_MEMBERS = 2  # of a group, whose gradient is computed again
_SAMPLES = 3  # whose log-probs are computed again
_EDGE = 1e-4  # of the clip: rounding may move a ratio over it
_TERMS = ("entropy_coef", "observations")  # coefficients of terms that look at no sampled token


class _SampleTokens(NamedTuple):
    """What a pass has of the trained tokens of a sample, (A,) each: the loss's gradient by their log-probs, these, old ones, the reference's, entropies."""

    factors: Tensor
    logprobs: Tensor
    old: Tensor
    reference: Tensor
    entropies: Tensor


class UpdateLaws(StepLaws):
    """Watches the updates of a step of GRPO. ``config``: of the run, whatever the step. ``fresh``: the sampler has this model's weights."""

    def __init__(
        self,
        runner: LawRunner,
        loaded: LoadedModel,
        config: GrpoConfig,
        samples: Samples,
        reference: Reference | None,
        fresh: bool,
    ) -> None:
        super().__init__(runner, loaded, config)
        self.config, self.samples, self.reference, self._fresh = config, samples, reference, fresh
        self.optimizer: torch.optim.Optimizer | None = None  # that moved the weights
        self._passes: dict[int, _SampleTokens] = {}
        self._old: dict[int, Tensor] = {}
        self._updates = 0
        self._figures: list[Mapping[str, float]] = []

    def begins(self) -> None:
        """Before the passes."""
        self._passes.clear()
        super().begins()

    def watched(
        self,
        plan: UpdatePlan,
        indexes: Sequence[int],
        tokens: BatchTokens,
        entropy: Tensor,
        reference: Tensor | None,
    ) -> Tensor:
        """Returns log-probs for the losses; what the backward pass brings to them, each token's factor, is kept."""
        theirs = torch.zeros_like(tokens.logprobs) if reference is None else reference

        def keep(factors: Tensor) -> None:
            rows = [factors, tokens.logprobs.detach(), tokens.old.detach(), theirs, entropy.detach()[None]]
            lengths = [plan.samples[index].actions for index in indexes]
            parts = split(torch.cat(rows).double().cpu(), lengths, dim=1)
            self._passes.update((index, _SampleTokens(*part)) for index, part in zip(indexes, parts, strict=True))

        logprobs = tokens.logprobs.view_as(tokens.logprobs)
        logprobs.register_hook(keep)
        return logprobs

    def passed(
        self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float, optimizer: torch.optim.Optimizer, lr: float
    ) -> None:
        """Between the passes and the optimizer's step; gradients of terms at the first update alone, whose ratio is 1."""
        check = self.runner.check
        check("loss", self.sums_again)
        check("loss", self._dealt_again, trainer, plan)
        check("tokens", self._logprobs_again)
        if self._fresh and not self._updates:
            check("sampler", self._sampled_again)
        check("loss", self._factors_again, trainer, plan, loss)
        if not self._updates:
            if self.config.algorithm not in FORMULAS or self.config.correction is not None:
                check("cuts", self._cuts, trainer, plan)
            check("loss", self._terms_again, trainer, plan)
            self.moves(optimizer, self.config, lr)
        self._updates += 1
        self.optimizer = optimizer

    def finished(self, figures: Mapping[str, Any]) -> Pairs:
        """Behind the last update: their number, and the figures of the step's record, which are means over the last epoch."""
        self._formula()
        epochs = [len(self._deals(epoch)) for epoch in range(self.config.epochs)]
        yield Pair(figures["updates"], sum(epochs), "the updates of the step")
        last = self._figures[sum(epochs[:-1]) :]
        for name in last[0] if last else ():
            mean = max if name == "ratio_max" else fmean
            again = mean([update[name] for update in last])
            if figures.get(name) is not None:
                yield Pair(figures[name], again, f"{name} of the step's record (metrics)", 1e-4 * max(1e-3, abs(again)))

    def _formula(self) -> Formula:
        formula = FORMULAS.get(self.config.algorithm)
        if formula is None or self.config.correction is not None:
            raise NotMeasured("one of Gradus's own algorithms, and no correction")
        return formula

    def _trains(self, index: int) -> bool:
        others = self.config.kl_coef or any(getattr(self.config, name) for name in _TERMS)
        return self.samples[index].actions > 0 and (bool(others) or self.samples[index].live)

    def _deals(self, epoch: int) -> list[list[int]]:
        """The samples of each update that has something to train: the groups are shuffled anew in each epoch, by the run's seed."""
        config, deals = self.config, list[list[int]]()
        names = np.array(sorted({sample.key[0] for sample in self.samples}))
        rng = np.random.default_rng(child_seed(config.seed, "minibatches", self.runner.step, epoch))
        order = rng.permutation(names) if config.minibatches > 1 else names
        for start in range(min(config.minibatches, len(names))):
            groups = set(order[start :: config.minibatches])
            deal = [index for index, sample in enumerate(self.samples) if sample.key[0] in groups]
            if any(map(self._trains, deal)):
                deals.append(deal)
        return deals

    def _place(self, index: int, what: str) -> str:
        sample = self.samples[index]
        return f"update {self._updates + 1}, group {sample.key[0]}, episode {sample.episode}: {what}"

    def _dealt_again(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Pairs:
        """What is dealt and passed, and the denominator of the ratio: the sampler's log-prob, or the trainer's before the first update."""
        self._formula()
        deals = list(chain.from_iterable(map(self._deals, range(self.config.epochs))))
        deal = deals[self._updates] if self._updates < len(deals) else []
        place = f"update {self._updates + 1}: samples that the shuffle of minibatches deals otherwise"
        yield Pair(len(set(deal) ^ set(plan.dealt)), 0, place)
        parted = sorted(self._passes.keys() ^ set(filter(self._trains, deal)))
        for index in parted[:1]:
            yield Pair(index in self._passes, index not in self._passes, self._place(index, "passes that reach it"))
        for index, (_, logprobs, old, *_) in self._passes.items():
            again = self._old.setdefault(index, old)
            if not trainer.old.by_trainer:
                again = self.samples[index].logprobs.float().double()
            yield worst_of(old, again, self._place(index, "the old log-prob of a token, the ratio's denominator"), 0.0)
            if trainer.old.by_trainer and not self._updates:
                place = self._place(index, "the mean old log-prob before any update, against the policy's")
                yield Pair(float(old.mean()), float(logprobs.mean()), place, 2 * self.rounding)

    def _apart(self, first: Tensor, second: Tensor, index: int, what: str) -> Pair:
        """Compares log-probs (A,) of a sample; of narrow numbers only the mean says anything."""
        if not len(second):
            return Pair(0, 0, "an answer behind a shorter prompt")
        distance = (first[: len(second)].cpu() - second.cpu()).abs()
        value, allowed = (distance.max(), 2e-3) if self.rounding < 1e-3 else (distance.mean(), 0.5)
        return Pair(float(value), 0.0, self._place(index, f"the difference of log-probs, {what}"), allowed)

    def _sampled_again(self) -> Pairs:
        """With fresh weights the trainer has the sampler's log-probs, in every group."""
        for index, tokens in self._passes.items():
            what = "of the sampler (decoding by its cache) from those of the trainer"
            yield self._apart(tokens.logprobs, self.samples[index].logprobs, index, what)

    @torch.no_grad()
    def _logprobs_again(self) -> Pairs:
        """The log-probs of passes that share prefixes are those of each sample alone: where the sampler has the most other ones, and of some samples."""
        indexes = sorted(self._passes)
        away = [float((self._passes[index].logprobs - self.samples[index].logprobs).abs().max()) for index in indexes]
        drawn = indexes[self.runner.step * STRIDE % len(indexes) :]
        for index in [indexes[int(np.argmax(away))], *drawn[: _SAMPLES - 1]]:
            sample, tokens = beginning(self.loaded, self.samples[index]), self._passes[index]
            again = plain_logprobs(self.loaded, self.config.sampling, sample)
            what = "of the trainer's microbatch (its tokens, their positions, what each reads) from a plain pass"
            yield self._apart(tokens.logprobs, again, index, what)
            if self.reference is not None:
                with self.reference() as model:
                    again = plain_logprobs(replace(self.loaded, model=model), self.config.sampling, sample)
                yield self._apart(tokens.reference, again, index, "of the reference, by a plain pass")

    def _factors_again(self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float) -> Pairs:
        """The factor of grad log pi at each token, of the policy's term and the divergence; the loss is the sum of what tokens are worth."""
        formula, config = self._formula(), self.config
        order = sorted(self._passes)
        factors, logprobs, old, reference, entropies = map(
            torch.cat, zip(*[self._passes[index] for index in order], strict=True)
        )
        lengths = [self.samples[index].actions for index in order]
        shares, signs = self._shares(formula, plan.dealt), [_advantages(self.samples[index]) for index in order]
        share = torch.tensor([shares[index] for index in order]).double().repeat_interleave(torch.tensor(lengths))
        token_ratio = (logprobs - old).exp()
        log_ratio = logprobs - old
        if formula.ratio == "sequence":
            log_ratio = torch.cat([part.mean().expand_as(part) for part in split(log_ratio, lengths)])
        low, high = config.clip_low or formula.clip[0], config.clip_high or formula.clip[1]
        ratio, again = log_ratio.exp(), -share * torch.cat(signs)
        slopes, worths = weigh(ratio, -again, low, high, formula.ratio)
        # The divergence is ratio x (exp(d) - 1 - d), d the reference's log-prob less the policy's: its slope is -ratio x d.
        away = reference - logprobs
        to_reference = config.kl_coef * share * token_ratio
        expected = again * slopes - to_reference * away
        edge = ((ratio - 1.0 - high).abs() < _EDGE) | ((ratio - 1.0 + low).abs() < _EDGE)
        # A factor of a narrow ratio is rounded by more where the log-probs are large.
        size = (again * ratio).abs() + to_reference * away.exp().clamp(min=1.0)
        allowed = 1e-5 * size.max().expand_as(again).masked_fill(edge, torch.inf)
        worst = int(((factors - expected).abs() - allowed).argmax())
        owner = order[int(torch.arange(len(order)).repeat_interleave(torch.tensor(lengths))[worst])]
        place = self._place(owner, "the factor of a token's gradient, ratio, KL to the reference and clip included")
        yield Pair(float(factors[worst]), float(expected[worst]), place, float(allowed[worst]))
        divergence = token_ratio * (away.exp() - 1.0 - away)
        n_tokens = sum(self.samples[index].actions for index in plan.dealt)
        self._figures.append(
            {
                "loss": loss,
                "entropy": float(entropies.mean()),
                "ratio_max": float(ratio.max()),
                **({"kl": float(divergence.sum()) / n_tokens} if self.reference is not None else {}),
            }
        )
        bonus = config.entropy_coef * remaining(config.entropy_schedule, (self.runner.step - 1) / config.max_steps)
        yield Pair(trainer.config.entropy_coef, bonus, "the coefficient of the entropy bonus, by its schedule", 1e-9)
        if not config.observations:
            # These two weigh the log-prob itself.
            terms = again * worths * (logprobs if formula.ratio in ("bounded", "plain") else 1.0)
            terms = terms + config.kl_coef * share * divergence
            terms = terms - bonus * torch.cat([_bonus(self.samples[index]) for index in order]) * entropies / n_tokens
            place = f"update {self._updates + 1}: the loss"
            yield Pair(loss, float(terms.sum()), place, 1e-4 * float(terms.abs().sum()))

    def _shares(self, formula: Formula, deal: Sequence[int]) -> dict[int, float]:
        """Index of a sample -> one over what the loss divides its tokens by, from all samples that an update is dealt."""
        lengths: Counter[int] = Counter()
        for index in deal:
            lengths[self.samples[index].episode] += self.samples[index].actions
        budget = self.config.sampling.max_new_tokens * (self.config.max_turns or 1)
        count = lengths.total() if formula.average == "tokens" else len(lengths)
        shares: dict[int, float] = {}
        for index in deal:
            of_episode = {"sequences": lengths[self.samples[index].episode], "budget": budget}.get(formula.average, 1)
            shares[index] = 1.0 / max(1, count * of_episode)
        return shares

    def _part(self, plan: UpdatePlan) -> UpdatePlan:
        """The plan with some members of one group, the denominators as they are."""
        live = [index for index, sample in plan.samples.items() if sample.live] or list(plan.samples)
        if not live or self.config.gradient_checkpointing:
            raise NotMeasured("something to train, and gradient_checkpointing = false")
        group = plan.samples[live[0]].key[0]
        chosen = [index for index in live if plan.samples[index].key[0] == group][:_MEMBERS]
        return replace(plan, samples={index: plan.samples[index] for index in chosen}, local=chosen)

    def _cuts(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Pairs:
        """The gradient of some members of a group: in one pass with a shared prefix, and each alone."""
        if self.runner.step == 1:
            part = self._part(plan)
            alone = self.gradient(_losses(replace(trainer, shares=False), part, part.longest))
            together = self.gradient(_losses(trainer, part, trainer.budget.tokens))
            yield self.same_gradient(together, alone, "together and each sequence alone")

    def _terms_again(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Pairs:
        """Each term's gradient of some members of a group, in one pass, against the model's own forward pass over each alone."""
        formula, config, part = self._formula(), trainer.config, self._part(plan)
        names = ["policy"] * (self.runner.step == 1) + [name for name in _TERMS if getattr(config, name)]
        for name in names if self.runner.step < 3 else ():
            coefficients = {other: getattr(config, other) if other == name else 0.0 for other in _TERMS}
            alone = replace(trainer, config=config.model_copy(update=coefficients), reference=None)
            shares = self._shares(formula, plan.dealt) if name == "policy" else {}
            chosen = {
                index: sample if shares else _without_advantages(sample) for index, sample in part.samples.items()
            }
            first = self.gradient(_losses(alone, replace(part, samples=chosen), trainer.budget.tokens))
            second = self.gradient(self._plain(plan, index, shares.get(index), name, config) for index in part.local)
            yield self.same_gradient(first, second, f"{name} in {len(part.local)} samples, by a plain pass")

    def _plain(self, plan: UpdatePlan, index: int, share: float | None, name: str, config: GrpoConfig) -> Tensor:
        """What a sample adds to one term of the loss at ratio 1."""
        sample = self.samples[index]
        if share is not None:
            logprobs = plain_logprobs(self.loaded, config.sampling, sample)
            return -share * (_advantages(sample).to(logprobs) * logprobs).sum()
        if name == "entropy_coef":
            scores = plain_scores(self.loaded, config.sampling, sample)
            values = (_bonus(sample).to(scores) * -(scores.exp() * scores).sum(-1)).sum()
        else:
            values = read_logprobs(self.loaded, sample).sum()
        return -getattr(config, name) / sum(self.samples[index].actions for index in plan.dealt) * values


def _losses(trainer: UpdateTrainer, plan: UpdatePlan, tokens: int) -> Iterator[Tensor]:
    """The parts of the loss by the run's own passes of so many tokens each."""
    with precision(trainer.loaded, trainer.config):
        for batch in trainer.cut(plan, tokens):
            yield microbatch_loss(trainer, plan, batch.to(trainer.loaded.device))[0]


def _advantages(sample: TrainingSample) -> Tensor:
    assert sample.advantages is not None
    return sample.advantages.double()


def _bonus(sample: TrainingSample) -> Tensor:
    """The share of the entropy bonus that each token gets."""
    return torch.ones(sample.actions) if sample.entropy is None else sample.entropy


def _without_advantages(sample: TrainingSample) -> TrainingSample:
    """The sample with advantages of 0: what is left is the other terms."""
    return replace(sample, advantages=torch.zeros_like(_advantages(sample)))
