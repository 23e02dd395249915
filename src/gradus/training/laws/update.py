"""The updates of a step, again: who is dealt what, the factor of each token, the loss, and each term's gradient by a plain pass (laws 1, 3 and 4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.core import child_seed
from gradus.policies.local.cpu.support import autocasts, has_fast_bfloat16
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, split
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.objective import BatchTokens, UpdatePlan
from gradus.training.engine.optimizers import trainable
from gradus.training.engine.prepare import precision
from gradus.training.engine.reference import Reference
from gradus.training.engine.update import UpdateTrainer, microbatch_loss
from gradus.training.laws.draws import plain_scores, read_logprobs
from gradus.training.laws.formulas import FORMULAS, Formula, remaining, weigh
from gradus.training.laws.movement import Movement, drawn_tensors
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, apart, norm_of
from gradus.training.trainer_config import TrainerConfig

_MEMBERS = 2  # of a group, whose gradient is computed again
_EDGE = 1e-4  # of the clip: rounding may move a ratio over it
_COEFFICIENTS = ("kl_coef", "entropy_coef", "observations")  # of the terms beside the policy's


def is_exact(loaded: LoadedModel, config: TrainerConfig) -> bool:
    """Says whether passes and backward passes are in float32."""
    narrow = config.backward == "bfloat16" or (config.backward == "auto" and has_fast_bfloat16(loaded.device))
    narrow = narrow or autocasts(config.autocast, loaded.device) or bool(config.quantize)
    return loaded.dtype == torch.float32 and not narrow


def flat_gradients(gradients: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> Tensor:
    """(n,) the gradients of tensors one after another; one that has none counts 0."""
    parts = zip(gradients, tensors, strict=True)
    return torch.cat([(torch.zeros_like(tensor) if part is None else part).float().flatten() for part, tensor in parts])


class SumWatch:
    """Adds up what the microbatches of an update bring to the gradient of one tensor."""

    def __init__(self, loaded: LoadedModel, seed: int, step: int) -> None:
        self.tensors = drawn_tensors(loaded.model, seed, step)
        self.name, self._tensor = self.tensors[0]
        self._sum: Tensor | float = 0.0

    def begins(self) -> None:
        """Before the passes."""
        self._sum = 0.0
        self._hook = self._tensor.register_hook(self._add)

    def _add(self, gradient: Tensor) -> None:
        self._sum = self._sum + gradient.detach().float()

    def again(self) -> Iterator[Pair]:
        """Behind the passes: the gradient is the sum of those of the microbatches, and of nothing else."""
        self._hook.remove()
        whole = master_of(self._tensor).grad
        if whole is not None:
            yield apart(whole.float(), torch.as_tensor(self._sum), 1e-4, f"the sum of the gradients of {self.name}")


@dataclass
class UpdateLaws:
    """Watches the updates of a step in a single process, and changes nothing. ``config``: of the run, whatever the step."""

    runner: LawRunner
    loaded: LoadedModel
    config: GrpoConfig
    samples: Sequence[TrainingSample]
    reference: Reference | None
    optimizer: torch.optim.Optimizer | None = None  # that moved the weights
    _returned: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    _old: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    _updates: int = 0
    _entropies: list[Tensor] = field(default_factory=list[Tensor])
    _figures: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    _movement: Movement | None = None

    def __post_init__(self) -> None:
        self._sums = SumWatch(self.loaded, self.config.seed, self.runner.step)
        self._tensors = [tensor for _, tensor in self._sums.tensors]
        self._rounding = 1e-4 if is_exact(self.loaded, self.config) else 0.1  # of the norm of a gradient

    def begins(self) -> None:
        """Before the passes."""
        self._returned.clear()
        self._entropies.clear()
        self._sums.begins()

    def watched(self, plan: UpdatePlan, indexes: Sequence[int], tokens: BatchTokens, entropy: Tensor) -> Tensor:
        """Returns log-probs for the policy's loss alone; what the backward pass brings to them, each token's factor, is kept."""
        self._entropies.append(entropy.detach())

        def keep(factors: Tensor) -> None:
            rows = torch.cat([factors, tokens.logprobs.detach(), tokens.old.detach()]).double().cpu()
            lengths = [plan.samples[index].actions for index in indexes]
            self._returned.update(zip(indexes, split(rows, lengths, dim=1), strict=True))

        logprobs = tokens.logprobs.view_as(tokens.logprobs)
        logprobs.register_hook(keep)
        return logprobs

    def passed(
        self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float, optimizer: torch.optim.Optimizer, lr: float
    ) -> None:
        """Between the passes and the optimizer's step; the terms' own gradients at the first update alone, whose ratio is 1."""
        self.runner.check("loss", self._sums.again)
        self.runner.check("loss", self._update_again, trainer, plan, loss)
        if not self._updates:
            if self.config.algorithm not in FORMULAS or self.config.correction is not None:
                self.runner.check("cuts", self._cuts, trainer, plan)
            self.runner.check("loss", self._terms_again, trainer, plan)
            self._movement = Movement(self.loaded, optimizer, self.config, lr, self.runner.step)
        self._updates += 1
        self.optimizer = optimizer

    def moved(self, norm: float) -> None:
        """Behind the optimizer's step."""
        if self._movement is not None:
            self.runner.check("optimizer", self._movement.again, norm)
            self._movement = None

    def finished(self, figures: Mapping[str, Any]) -> Iterator[Pair]:
        """Behind the last update: their number, and the figures of the step's record, which are means over the last epoch."""
        self._formula()
        epochs = [len(self._deals(epoch)) for epoch in range(self.config.epochs)]
        yield Pair(figures["updates"], sum(epochs), 0.0, "the updates of the step")
        last = self._figures[sum(epochs[:-1]) :]
        for name, mean in (("loss", fmean), ("entropy", fmean), ("ratio_max", max)):
            if last and figures.get(name) is not None:
                again = mean([update[name] for update in last])
                yield Pair(figures[name], again, 1e-4 * max(1e-3, abs(again)), f"{name} of the step's record (metrics)")

    def _formula(self) -> Formula:
        formula = FORMULAS.get(self.config.algorithm)
        if formula is None or self.config.correction is not None:
            raise NotMeasured("one of Gradus's own algorithms, and no correction")
        return formula

    def _trains(self, sample: TrainingSample) -> bool:
        others = any(getattr(self.config, name) for name in _COEFFICIENTS)
        return sample.actions > 0 and (others or sample.live)

    def _deals(self, epoch: int) -> list[list[int]]:
        """The samples of each update that has something to train: the groups are shuffled anew in each epoch, by the run's seed."""
        config, deals = self.config, list[list[int]]()
        names = np.array(sorted({sample.key[0] for sample in self.samples}))
        rng = np.random.default_rng(child_seed(config.seed, "minibatches", self.runner.step, epoch))
        order = rng.permutation(names) if config.minibatches > 1 else names
        for start in range(min(config.minibatches, len(names))):
            groups = set(order[start :: config.minibatches])
            deal = [index for index, sample in enumerate(self.samples) if sample.key[0] in groups]
            if any(self._trains(self.samples[index]) for index in deal):
                deals.append(deal)
        return deals

    def _update_again(self, trainer: UpdateTrainer, plan: UpdatePlan, loss: float) -> Iterator[Pair]:
        """What is dealt; the ratio's denominator; the factor of grad log pi at each token; the loss, the sum of what tokens are worth."""
        formula, deals = self._formula(), list(chain.from_iterable(map(self._deals, range(self.config.epochs))))
        where = f"update {self._updates + 1}"
        deal = deals[self._updates] if self._updates < len(deals) else []
        place = f"{where}: samples that the shuffle of minibatches deals otherwise"
        yield Pair(len(set(deal) ^ set(plan.dealt)), 0.0, 0.0, place)
        expected = self._expected(formula, deal)
        trained = {index for index in deal if self._trains(self.samples[index])}
        for index in sorted(trained | self._returned.keys()):
            sample = self.samples[index]
            place = f"{where}, group {sample.key[0]}, episode {sample.episode}: whether a backward pass reaches it"
            yield Pair(index in self._returned, index in trained, 0.0, place)
        yield from self._old_again(trainer, where)
        order = sorted(trained)
        factors, logprobs, old = torch.cat([self._returned[index] for index in order], dim=1)
        again = torch.cat([expected[index] for index in order])
        log_ratio = logprobs - old
        if formula.ratio == "sequence":
            lengths = [self.samples[index].actions for index in order]
            log_ratio = torch.cat([part.mean().expand_as(part) for part in split(log_ratio, lengths)])
        low, high = self.config.clip_low or formula.clip[0], self.config.clip_high or formula.clip[1]
        ratio = log_ratio.exp()
        entropy = float(torch.cat(self._entropies).double().mean())
        self._figures.append({"loss": loss, "entropy": entropy, "ratio_max": float(ratio.max())})
        slopes, worths = weigh(ratio, -again, low, high, formula.ratio)
        edge = ((ratio - 1.0 - high).abs() < _EDGE) | ((ratio - 1.0 + low).abs() < _EDGE)
        # A factor of a narrow ratio is rounded by more where the log-probs are large.
        allowed = 1e-5 * (again * ratio).abs().max().expand_as(again).masked_fill(edge, torch.inf)
        worst = int(((factors - again * slopes).abs() - allowed).argmax())
        owner = [sample for index in order for sample in [self.samples[index]] * self.samples[index].actions][worst]
        place = f"{where}, group {owner.key[0]}, episode {owner.episode}: the factor of a token's gradient"
        yield Pair(float(factors[worst]), float((again * slopes)[worst]), float(allowed[worst]), place)
        if not any(getattr(self.config, name) for name in _COEFFICIENTS):
            # These two weigh the log-prob itself.
            terms = again * worths * (logprobs if formula.ratio in ("bounded", "plain") else 1.0)
            yield Pair(loss, float(terms.sum()), 1e-4 * float(terms.abs().sum()), f"{where}: the loss")

    def _old_again(self, trainer: UpdateTrainer, where: str) -> Iterator[Pair]:
        """The denominator of the ratio is the sampler's log-prob, or what the trainer had before the first update."""
        for index, (_, logprobs, old) in self._returned.items():
            again = self._old.setdefault(index, old)
            if not trainer.old.by_trainer:
                again = self.samples[index].logprobs.float().double()
            worst = int((old - again).abs().argmax())
            place = f"{where}, sample {index}: the old log-prob of token {worst}, the ratio's denominator"
            yield Pair(float(old[worst]), float(again[worst]), 0.0, place)
            if trainer.old.by_trainer and not self._updates:
                place = f"{where}, sample {index}: the mean old log-prob before any update, against the policy's"
                yield Pair(float(old.mean()), float(logprobs.mean()), 2 * self._rounding, place)

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

    def _expected(self, formula: Formula, deal: Sequence[int]) -> dict[int, Tensor]:
        """Index of a dealt sample -> (A,) minus advantage over denominator."""
        expected: dict[int, Tensor] = {}
        for index, share in self._shares(formula, deal).items():
            advantages = self.samples[index].advantages
            assert advantages is not None
            expected[index] = -share * advantages.double()
        return expected

    def _part(self, plan: UpdatePlan) -> UpdatePlan:
        """The plan with some members of one group, the denominators as they are."""
        live = [index for index, sample in plan.samples.items() if sample.live] or list(plan.samples)
        if not live or self.config.gradient_checkpointing:
            raise NotMeasured("something to train, and gradient_checkpointing = false")
        group = plan.samples[live[0]].key[0]
        chosen = [index for index in live if plan.samples[index].key[0] == group][:_MEMBERS]
        return replace(plan, samples={index: plan.samples[index] for index in chosen}, local=chosen)

    def _cuts(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Iterator[Pair]:
        """The gradient of some members of a group: in one pass with a shared prefix, and each alone."""
        if self.runner.step > 1:
            return
        part = self._part(plan)
        alone = self._gradient(replace(trainer, shares=False), part, part.longest)
        together = self._gradient(trainer, part, trainer.budget.tokens)
        yield self._same(together, alone, "together and each sequence alone")

    def _terms_again(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Iterator[Pair]:
        """Each term's gradient of some members of a group, in one pass, against the model's own forward pass over each alone."""
        formula, config, part = self._formula(), self.config, self._part(plan)
        bonus = config.entropy_coef * remaining(config.entropy_schedule, (self.runner.step - 1) / config.max_steps)
        place = "the coefficient of the entropy bonus, by its schedule"
        yield Pair(trainer.config.entropy_coef, bonus, 1e-9, place)
        names = [name for name in _COEFFICIENTS if getattr(trainer.config, name)]
        if self.runner.step > 2:  # in the second step the policy is not its reference any more
            return
        for name in ["policy"] * (self.runner.step == 1) + names:
            if name == "kl_coef" and self._rounding > 1e-4:
                continue  # the divergence is a small difference of rounded numbers
            coefficients = {other: getattr(trainer.config, other) if other == name else 0.0 for other in _COEFFICIENTS}
            reference = self.reference if name == "kl_coef" else None
            alone = replace(trainer, config=trainer.config.model_copy(update=coefficients), reference=reference)
            signal = part if name == "policy" else _without_advantages(part)
            first = self._gradient(alone, signal, trainer.budget.tokens)
            second, size = self._plain_gradient(formula, part, plan.dealt, name)
            term = {"policy": "the policy's term", "kl_coef": "the KL to the reference"}.get(name, name)
            noise = 1e-5 * getattr(config, name, 0.0) * size
            yield self._same(first, second, f"{term} in {len(part.local)} samples, by a plain pass", noise)

    def _plain_gradient(
        self, formula: Formula, part: UpdatePlan, dealt: Sequence[int], name: str
    ) -> tuple[Tensor, float]:
        """(n,) of one term over the samples of ``part``, and the norm of the same with every token's factor its share alone."""
        total, size = torch.zeros(sum(map(torch.numel, self._tensors)), device=self.loaded.device), 0.0
        shares, expected = self._shares(formula, dealt), self._expected(formula, dealt)
        n_tokens = sum(self.samples[index].actions for index in dealt)
        for index in part.local:
            sample = self.samples[index]
            scores = plain_scores(self.loaded, self.config.sampling, sample)
            logprobs = scores.gather(1, sample.learned_ids[:, None].to(scores.device))[:, 0]
            if name == "policy":
                loss = (expected[index].to(logprobs) * logprobs).sum()
            elif name == "kl_coef":
                # At ratio 1 the gradient of ratio x k3 is (log pi - log ref) grad log pi.
                assert self.reference is not None
                with torch.no_grad(), self.reference() as model:
                    theirs = plain_scores(replace(self.loaded, model=model), self.config.sampling, sample)
                ratio = logprobs - theirs.gather(1, sample.learned_ids[:, None].to(scores.device))[:, 0]
                loss = self.config.kl_coef * shares[index] * (ratio.detach() * logprobs).sum()
            elif name == "entropy_coef":
                bonus = remaining(self.config.entropy_schedule, (self.runner.step - 1) / self.config.max_steps)
                weights = torch.ones(sample.actions) if sample.entropy is None else sample.entropy
                entropies = -(scores.exp() * scores).sum(-1)
                loss = -self.config.entropy_coef * bonus / n_tokens * (weights.to(entropies) * entropies).sum()
            else:
                loss = -self.config.observations / n_tokens * read_logprobs(self.loaded, sample).sum()
            keeps = name == "kl_coef"
            gradients = torch.autograd.grad(loss, self._tensors, retain_graph=keeps, allow_unused=True)
            total += flat_gradients(gradients, self._tensors)
            if name == "kl_coef":  # near the reference it is a small difference of large numbers
                whole = torch.autograd.grad(shares[index] * logprobs.sum(), self._tensors, allow_unused=True)
                size += norm_of(flat_gradients(whole, self._tensors))
        return total, size

    def _same(self, first: Tensor, second: Tensor, place: str, noise: float = 0.0) -> Pair:
        """Compares gradients (n,) of the drawn tensors; rounding is that of the sums of the whole gradient."""
        gradients = [master_of(tensor).grad for tensor in trainable(self.loaded.model).values()]
        whole = math.hypot(*(norm_of(gradient) for gradient in gradients if gradient is not None))
        place = f"the gradient of {self._sums.name} and {len(self._tensors) - 1} other tensors, {place}"
        return apart(first, second, 5 * self._rounding, place, 0.1 * self._rounding * whole + noise)

    def _gradient(self, trainer: UpdateTrainer, plan: UpdatePlan, tokens: int) -> Tensor:
        """(n,) of the drawn tensors, by the run's own passes of so many tokens each."""
        total = torch.zeros(sum(map(torch.numel, self._tensors)), device=self.loaded.device)
        with precision(trainer.loaded, trainer.config):
            for batch in trainer.cut(plan, tokens):
                loss, _ = microbatch_loss(trainer, plan, batch.to(trainer.loaded.device))
                total += flat_gradients(torch.autograd.grad(loss, self._tensors, allow_unused=True), self._tensors)
        return total


def _without_advantages(plan: UpdatePlan) -> UpdatePlan:
    """The plan with advantages of 0: what is left is the other terms."""
    samples: dict[int, TrainingSample] = {}
    for index, sample in plan.samples.items():
        assert sample.advantages is not None
        samples[index] = replace(sample, advantages=torch.zeros_like(sample.advantages))
    return replace(plan, samples=samples)
