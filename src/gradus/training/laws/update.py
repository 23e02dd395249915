"""The updates of a step, again: who is dealt what, the log-probs and factor of each token, the loss, and terms by a plain pass (laws 1, 3, 4 and 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gradus.training.data.sequences import Samples, TrainingSample, split
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.objective import BatchTokens, UpdatePlan
from gradus.training.engine.prepare import precision
from gradus.training.engine.reference import Reference
from gradus.training.engine.update import UpdateResult, UpdateTrainer, UpdateWatch, microbatch_loss
from gradus.training.laws.formulas import FORMULAS, Formula, remaining, weigh
from gradus.training.laws.movement import gradient_norm
from gradus.training.laws.plain_pass import STRIDE, beginning, plain_logprobs, plain_scores, read_logprobs
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, alone, worst_of
from gradus.training.laws.step import StepLaws

_MEMBERS = 2  # of a group, whose gradient is computed again
_SAMPLES = 3  # whose log-probs are computed again
FRESH = 2e-3  # nats between sampler and trainer in float32, with the same weights
_EDGE = 1e-4  # of the clip: rounding may move a ratio over it
_TERMS = ("entropy_coef", "observations")  # coefficients of terms that look at no sampled token

_OVER_UPDATES: Mapping[str, Callable[[list[float]], float]] = {
    "ratio_max": max,
    "trained_tokens": sum,
}  # others have a mean


class _SampleTokens(NamedTuple):
    """What a pass has of the trained tokens of a sample, (A,) float64 each. ``factors``: the gradient of the loss by their log-probs."""

    factors: Tensor
    logprobs: Tensor
    old: Tensor
    reference: Tensor  # 0 without one
    entropies: Tensor


class _Weighed(NamedTuple):
    """The trained tokens of an update, sample after sample, and what its loss makes of them by the formula, (A,) each.

    ``samples``: their indexes. ``terms``: what each adds to the loss, and ``slopes``: the gradient of their sum by the log-probs; ``sizes``:
    what rounding is a share of. ``cut``: whether the clip changes the ratio. ``divergence``: from the reference, or from the sampler without one.
    """

    samples: Tensor
    tokens: _SampleTokens
    ratio: Tensor
    cut: Tensor
    at_clip: Tensor
    divergence: Tensor
    terms: Tensor
    slopes: Tensor
    sizes: Tensor


class UpdateLaws(StepLaws, UpdateWatch):
    """Watches the updates of a step of GRPO. ``config``: of the run, whatever the step."""

    def __init__(
        self,
        runner: LawRunner,
        loaded: LoadedModel,
        config: GrpoConfig,
        samples: Samples,
        reference: Reference | None,
    ) -> None:
        super().__init__(runner, loaded, config)
        self.config, self.samples, self.reference = config, samples, reference
        self.optimizer: torch.optim.Optimizer | None = None  # that moved the weights
        self._passes: dict[int, _SampleTokens] = {}
        self._old: dict[int, Tensor] = {}
        self._updates = 0
        self._figures: list[Mapping[str, float]] = []  # of each update
        self._logp_diff: Mapping[str, float] = {}  # of the first one

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
            for index, part in zip(indexes, parts, strict=True):
                self._passes[index] = _SampleTokens(*part)

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
        check("loss", self._loss_again, trainer, plan, loss)
        if not self._updates:
            check("cuts", self._cuts, trainer, plan)
            check("loss", self._terms_again, trainer, plan)
            self.moves(optimizer, lr)
        self._updates += 1
        self.optimizer = optimizer

    def finished(self, result: UpdateResult) -> Pairs:
        """Behind the last update: their number, and the figures of the step's record, which are means over the last epoch."""
        self._formula()
        epochs = [len(self._deals(epoch)) for epoch in range(self.config.epochs)]
        yield Pair(result.figures["updates"], sum(epochs), "the updates of the step")
        figures: dict[str, Any] = {
            **result.figures,
            "trained_tokens": result.trained_tokens,
            "grad_norm": result.grad_norm,
        }
        last_epoch = self._figures[sum(epochs[:-1]) :]
        if not last_epoch:
            return
        again: dict[str, float] = {}
        for name in last_epoch[0]:
            again[name] = _OVER_UPDATES.get(name, fmean)([update[name] for update in last_epoch])
        again["grad_norm"] = max(update["grad_norm"] for update in self._figures)
        if self.config.minibatches == 1 and self.rounding < 1e-3:
            again |= self._logp_diff
        edge = again.pop("at_clip")
        for name, value in again.items():
            allowed = 1e-3 * max(1e-3, abs(value)) + edge * (name == "clip_fraction")
            if figures.get(name) is not None:
                yield Pair(figures[name], value, f"{name} of the step's record (metrics)", allowed)

    def _formula(self) -> Formula:
        formula = FORMULAS.get(self.config.algorithm)
        if formula is None or self.config.correction is not None:
            raise NotMeasured("one of Gradus's own algorithms, and no correction")
        return formula

    def _trains(self, index: int) -> bool:
        """Says whether a sample has a gradient: by its advantages, or by a term that needs none."""
        sample = self.samples[index]
        other_terms = [getattr(self.config, name) for name in ("kl_coef", *_TERMS)]
        return sample.actions > 0 and (any(other_terms) or sample.live)

    def _deals(self, epoch: int) -> list[list[int]]:
        """The samples of each update that has something to train: the groups are shuffled anew in each epoch, by the run's seed."""
        config = self.config
        order = np.array(sorted({sample.key[0] for sample in self.samples}))
        if config.minibatches > 1:
            rng = np.random.default_rng(child_seed(config.seed, "minibatches", self.runner.step, epoch))
            order = rng.permutation(order)
        deals: list[list[int]] = []
        for start in range(min(config.minibatches, len(order))):
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
        place = f"update {self._updates + 1}: samples that the run, or the shuffle of minibatches, deals"
        yield alone(deal, plan.dealt, place)
        parted = sorted(self._passes.keys() ^ set(filter(self._trains, deal)))
        if parted:
            index = parted[0]
            is_passed = index in self._passes
            yield Pair(is_passed, not is_passed, self._place(index, "passes that reach it"))
        by_trainer = trainer.by_trainer
        for index, tokens in self._passes.items():
            # Those of the first pass that has a sample stay the denominators in all later ones.
            again = self._old.setdefault(index, tokens.old)
            if not by_trainer:
                again = self.samples[index].logprobs.float().double()
            what = "the old log-prob of a token, the ratio's denominator"
            yield worst_of(tokens.old, again, self._place(index, what), 0.0)
            if by_trainer and not self._updates:
                place = self._place(index, "the mean old log-prob before any update, against the policy's")
                yield Pair(float(tokens.old.mean()), float(tokens.logprobs.mean()), place, 2 * self.rounding)

    def _apart(self, first: Tensor, second: Tensor, index: int, what: str) -> Pair:
        """Compares log-probs (A,) of a sample; of narrow numbers only the mean says anything."""
        if not len(second):
            return Pair(0, 0, "an answer behind a shorter prompt")
        distance = (first[: len(second)].cpu() - second.cpu()).abs()
        difference, allowed = distance.mean(), 0.5
        if self.rounding < 1e-3:
            difference, allowed = distance.max(), FRESH
        return Pair(float(difference), 0.0, self._place(index, f"the difference of log-probs, {what}"), allowed)

    @torch.no_grad()
    def _logprobs_again(self) -> Pairs:
        """The log-probs of passes that share prefixes are those of each sample alone: where the sampler has the most other ones, and of some samples."""
        indexes = sorted(self._passes)
        away = [float((self._passes[index].logprobs - self.samples[index].logprobs).abs().max()) for index in indexes]
        furthest = indexes[int(np.argmax(away))]
        drawn = indexes[self.runner.step * STRIDE % len(indexes) :]
        sampling = self.config.sampling
        what = "of the trainer's microbatch (its tokens, their positions, what each reads) from a plain pass"
        for index in [furthest, *drawn[: _SAMPLES - 1]]:
            sample, tokens = beginning(self.loaded, self.samples[index]), self._passes[index]
            yield self._apart(tokens.logprobs, plain_logprobs(self.loaded, sampling, sample), index, what)
            if self.reference is not None:
                with self.reference() as model:
                    again = plain_logprobs(replace(self.loaded, model=model), sampling, sample)
                yield self._apart(tokens.reference, again, index, "of the reference, by a plain pass")

    def _weighed(self, plan: UpdatePlan) -> _Weighed:
        """Weighs the tokens of all passes of an update by the formula. Raises NotMeasured without one."""
        formula, config = self._formula(), self.config
        order = sorted(self._passes)
        samples = [self.samples[index] for index in order]
        columns = zip(*[self._passes[index] for index in order], strict=True)
        tokens = _SampleTokens(*map(torch.cat, columns))
        lengths = [sample.actions for sample in samples]
        number = torch.arange(len(order)).repeat_interleave(torch.tensor(lengths))
        shares = self._shares(formula, plan.dealt)
        share = torch.tensor([shares[index] for index in order]).double()[number]
        signal = share * torch.cat([sample.credited for sample in samples]).double()
        logprobs = tokens.logprobs.clone().requires_grad_()
        log_ratio = logprobs - tokens.old
        token_ratio = log_ratio.exp()
        if formula.ratio == "sequence":
            log_ratio = torch.cat([part.mean().expand_as(part) for part in split(log_ratio, lengths)])
        ratio = log_ratio.exp()
        low, high = config.clip_low or formula.clip[0], config.clip_high or formula.clip[1]
        worths, cut = weigh(ratio, logprobs, signal, low, high, formula.ratio)
        away = tokens.reference - logprobs
        divergence = token_ratio * (away.exp() - 1.0 - away)
        terms = config.kl_coef * share * divergence - signal * worths
        (slopes,) = torch.autograd.grad(terms.sum(), logprobs)
        # A factor of a narrow ratio is rounded by more where the log-probs are large.
        to_reference = config.kl_coef * share * token_ratio
        sizes = (signal * ratio).abs() + to_reference * away.exp().clamp(min=1.0)
        if self.reference is None:
            divergence = token_ratio - 1.0 - token_ratio.log()
        at_clip = ((ratio - 1.0 - high).abs() < _EDGE) | ((ratio - 1.0 + low).abs() < _EDGE)
        columns = (ratio, cut, at_clip, divergence, terms, slopes, sizes)
        return _Weighed(torch.tensor(order)[number], tokens, *(column.detach() for column in columns))

    def _factor_again(self, weighed: _Weighed) -> Pair:
        """The factor of grad log pi at the token where it differs most, of the policy's term and the divergence."""
        factors, expected = weighed.tokens.factors, weighed.slopes
        allowed = 1e-5 * weighed.sizes.max().expand_as(expected).masked_fill(weighed.at_clip, torch.inf)
        worst = int(((factors - expected).abs() - allowed).argmax())
        what = "the factor of a token's gradient, ratio, KL to the reference and clip included"
        place = self._place(int(weighed.samples[worst]), what)
        return Pair(float(factors[worst]), float(expected[worst]), place, float(allowed[worst]))

    def _loss_again(self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float) -> Pairs:
        """Each token's factor, and the loss, the sum of what tokens are worth; its figures are kept for the step's record."""
        config, weighed = self.config, self._weighed(plan)
        yield self._factor_again(weighed)
        order = sorted(self._passes)
        entropies = weighed.tokens.entropies
        if not self._updates:
            away = (weighed.tokens.logprobs - torch.cat([self.samples[index].logprobs for index in order])).abs()
            p99 = float(away.quantile(0.99))
            self._logp_diff = {
                "logp_diff_mean": float(away.mean()),
                "logp_diff_p99": p99,
                "logp_diff_max": float(away.max()),
            }
        n_tokens = sum(self.samples[index].actions for index in plan.dealt)
        self._figures.append(
            {
                "loss": loss,
                "entropy": float(entropies.mean()),
                "ratio_max": float(weighed.ratio.max()),
                "kl": float(weighed.divergence.sum()) / (n_tokens if self.reference else len(entropies)),
                "clip_fraction": float(weighed.cut.sum()) / n_tokens,
                "at_clip": float(weighed.at_clip.sum()) / n_tokens,
                "trained_tokens": len(entropies),
                "grad_norm": gradient_norm(self.loaded.model),
            }
        )
        bonus = config.entropy_coef * remaining(config.entropy_schedule, (self.runner.step - 1) / config.max_steps)
        yield Pair(trainer.config.entropy_coef, bonus, "the coefficient of the entropy bonus, by its schedule", 1e-9)
        if config.observations:  # nothing is kept of the tokens that were read
            return
        bonus_shares = torch.cat([self.samples[index].bonus for index in order])
        terms = weighed.terms - bonus * bonus_shares * entropies / n_tokens
        place = f"update {self._updates + 1}: the loss"
        # Terms that cancel, or a policy beside its reference, leave nothing but the rounding of log-probs.
        noise = 1e-7 * float(weighed.sizes.sum())
        yield Pair(loss, float(terms.sum()), place, 1e-4 * float(terms.abs().sum()) + noise)

    def _shares(self, formula: Formula, deal: Sequence[int]) -> dict[int, float]:
        """Index of a sample -> one over what the loss divides its tokens by, from all samples that an update is dealt."""
        lengths: Counter[int] = Counter()
        for index in deal:
            lengths[self.samples[index].episode] += self.samples[index].actions
        budget = self.config.sampling.max_new_tokens * (self.config.max_turns or 1)
        shares: dict[int, float] = {}
        for index in deal:
            divisors = {
                "tokens": lengths.total(),
                "sequences": len(lengths) * lengths[self.samples[index].episode],
                "budget": len(lengths) * budget,
            }
            shares[index] = 1.0 / max(1, divisors[formula.average])
        return shares

    def _part(self, plan: UpdatePlan) -> UpdatePlan:
        """The plan with some members of one group, the denominators as they are."""
        samples = plan.samples
        live = [index for index, sample in samples.items() if sample.live] or list(samples)
        if not live or self.config.gradient_checkpointing:
            raise NotMeasured("something to train, and gradient_checkpointing = false")
        group = samples[live[0]].key[0]
        chosen = [index for index in live if samples[index].key[0] == group][:_MEMBERS]
        return replace(plan, samples={index: samples[index] for index in chosen}, local=chosen)

    def _cuts(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Pairs:
        """The gradient of the update does not depend on its passes: here they are a fourth as long. Without a formula, each sequence stands alone."""
        if self.config.gradient_checkpointing:
            raise NotMeasured("gradient_checkpointing = false")
        gradients = [master_of(tensor).grad for tensor in self._tensors]
        if self.runner.step > 1 or any(gradient is None for gradient in gradients):
            return
        first = torch.cat([gradient.float().flatten() for gradient in gradients if gradient is not None])
        tokens = sum(len(sample) for sample in plan.samples.values()) // 4
        has_formula = self.config.algorithm in FORMULAS and self.config.correction is None
        again = replace(trainer, shares=trainer.shares and has_formula)
        second = self.gradient(_losses(again, plan, max(tokens, plan.longest)))
        yield self.same_gradient(first, second, "in passes (microbatches, tiles) of other sizes")

    def _terms_again(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Pairs:
        """Each term's gradient of some members of a group, in one pass, against the model's own forward pass over each alone."""
        self._formula()
        config, part = trainer.config, self._part(plan)
        names = [name for name in _TERMS if getattr(config, name)]
        if self.runner.step == 1:
            names = ["policy", *names]
        if self.runner.step > 2:
            return
        for name in names:
            # One term at a time: a fault in a small one would drown in the gradient of the others.
            coefficients = {other: getattr(config, other) if other == name else 0.0 for other in _TERMS}
            one_term = replace(trainer, config=config.model_copy(update=coefficients), reference=None)
            samples: dict[int, TrainingSample] = {}
            for index, sample in part.samples.items():
                silent = torch.zeros_like(sample.credited)
                samples[index] = sample if name == "policy" else replace(sample, advantages=silent)
            first = self.gradient(_losses(one_term, replace(part, samples=samples), trainer.budget.tokens))
            second = self.gradient(self._plain(plan, index, name, config) for index in part.local)
            yield self.same_gradient(first, second, f"{name} in {len(part.local)} samples, by a plain pass")

    def _plain(self, plan: UpdatePlan, index: int, name: str, config: GrpoConfig) -> Tensor:
        """What a sample adds to one term of the loss at ratio 1."""
        sample = self.samples[index]
        if name == "policy":
            share = self._shares(self._formula(), plan.dealt)[index]
            logprobs = plain_logprobs(self.loaded, config.sampling, sample)
            return -share * (sample.credited.to(logprobs) * logprobs).sum()
        if name == "entropy_coef":
            scores = plain_scores(self.loaded, config.sampling, sample)
            entropies = -(scores.exp() * scores).sum(-1)
            values = sample.bonus.to(scores) * entropies
        else:
            values = read_logprobs(self.loaded, sample)
        n_tokens = sum(self.samples[dealt].actions for dealt in plan.dealt)
        return -getattr(config, name) / n_tokens * values.sum()


def fresh_again(largest: float) -> Pairs:
    """In every step sampler and trainer have the same log-probs of what was sampled with fresh weights."""
    place = (
        "the largest difference of log-probs, of the sampler (decoding by its cache, prompts) from those of the trainer"
    )
    yield Pair(largest, 0.0, place, FRESH)


def _losses(trainer: UpdateTrainer, plan: UpdatePlan, tokens: int) -> Iterator[Tensor]:
    """The parts of the loss by the run's own passes of so many tokens each."""
    trainer = replace(trainer, watch=UpdateWatch())
    with precision(trainer.loaded, trainer.config):
        for batch in trainer.cut(plan, tokens):
            yield microbatch_loss(trainer, plan, batch.to(trainer.loaded.device))[0]
