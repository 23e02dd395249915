"""A step's first update, again: the factor of each token, the gradient of one tensor, two cuts, and a plain pass (laws 1, 3 and 4).

At ratio 1 the policy's gradient is minus the sum of A grad log pi over the denominator, for every loss of the library.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradus.policies.local.cpu.support import autocasts, has_fast_bfloat16
from gradus.policies.local.loading import LoadedModel
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample, split
from gradus.training.engine.master_weights import master_of
from gradus.training.engine.objective import BatchTokens, UpdatePlan
from gradus.training.engine.optimizers import trainable
from gradus.training.engine.prepare import precision
from gradus.training.engine.update import UpdateTrainer, microbatch_loss
from gradus.training.laws.draws import plain_scores
from gradus.training.laws.movement import Movement, drawn_tensors
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, apart, norm_of

# What the loss of each named algorithm divides the tokens of an episode by.
_AVERAGES = {
    **dict.fromkeys(("gradus", "dapo", "cispo", "rloo", "reinforce++", "gdpo", "maxrl"), "tokens"),
    **dict.fromkeys(("grpo", "gspo"), "sequences"),
    "dr_grpo": "budget",
}
_MEMBERS = 2  # of a group, that are cut in two ways


@dataclass
class UpdateLaws:
    """Watches the first update of a step in a single process, and changes nothing."""

    runner: LawRunner
    loaded: LoadedModel
    config: GrpoConfig
    samples: Sequence[TrainingSample]
    _returned: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    _sum: Tensor | float = 0.0
    _movement: Movement | None = None

    def __post_init__(self) -> None:
        self._tensors = drawn_tensors(self.loaded.model, self.config.seed, self.runner.step)
        self._name, self._tensor = self._tensors[0]
        config, device = self.config, self.loaded.device
        narrow = config.backward == "bfloat16" or (config.backward == "auto" and has_fast_bfloat16(device))
        narrow = narrow or autocasts(config.autocast, device) or bool(config.quantize)
        exact = self.loaded.dtype == torch.float32 and not narrow
        self._rounding = 1e-4 if exact else 0.1  # of the norm of a gradient

    def begins(self) -> None:
        """Before the passes."""
        self._returned.clear()
        self._sum = 0.0
        self._hook = self._tensor.register_hook(self._add)

    def _add(self, gradient: Tensor) -> None:
        self._sum = self._sum + gradient.detach().float()

    def watched(self, plan: UpdatePlan, indexes: Sequence[int], tokens: BatchTokens) -> Tensor:
        """Returns log-probs for the policy's loss alone; what the backward pass brings to them, each token's factor, is kept."""

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
        """Between the passes and the optimizer's step: two cuts and a plain pass in a run's first step alone."""
        self._hook.remove()
        self.runner.check("first_update", self._factors, plan, loss)
        self.runner.check("first_update", self._added_up)
        if self.runner.step == 1:
            self.runner.check("cuts", self._cuts, trainer, plan)
            self.runner.check("first_update", self._plain_pass, trainer, plan)
        self._movement = Movement(self.loaded, optimizer, self.config, lr, self.runner.step)

    def moved(self, norm: float) -> None:
        """Behind the optimizer's step."""
        assert self._movement is not None
        self.runner.check("optimizer", self._movement.again, norm)

    def _factors(self, plan: UpdatePlan, loss: float) -> Iterator[Pair]:
        """The factor of grad log pi at each token is minus A over the denominator; the loss is their sum, or that of their products."""
        expected = self._expected(plan)
        for index, sample in plan.samples.items():
            place = f"group {sample.key[0]}, episode {sample.episode}: a backward pass reaches it"
            yield Pair(index in self._returned, True, 0.0, place)
        factors, logprobs, old = torch.cat([self._returned[index] for index in plan.samples], dim=1)
        again, distance = torch.cat(list(expected.values())), (logprobs - old).abs()
        # Rounding may move a ratio out of the clip, which takes its gradient.
        clipped = distance > min(self.config.clips) / 2
        allowed = ((1e-5 + 2 * distance) * again.abs().max()).masked_fill(clipped, torch.inf)
        worst = int(((factors - again).abs() - allowed).argmax())
        owners = [sample for sample in plan.samples.values() for _ in range(sample.actions)]
        where = f"group {owners[worst].key[0]}, episode {owners[worst].episode}: the factor of a token's gradient"
        yield Pair(float(factors[worst]), float(again[worst]), float(allowed[worst]), where)
        if not (self.config.kl_coef or self.config.entropy_coef or self.config.observations):
            # These two weigh the log-prob itself.
            terms = again * logprobs if self.config.algorithm in ("cispo", "rloo") else again
            slack = 1e-4 + 2 * float(distance.max())
            yield Pair(loss, float(terms.sum()), slack * float(terms.abs().sum()), "the loss")

    def _expected(self, plan: UpdatePlan) -> dict[int, Tensor]:
        """Index of a trained sample -> (A,) minus advantage over denominator, from all samples that the update was dealt."""
        average = _AVERAGES.get(self.config.algorithm)
        if average is None or self.config.correction is not None:
            raise NotMeasured("one of Gradus's own algorithms, and no correction")
        lengths: Counter[int] = Counter()
        for index in plan.dealt:
            lengths[self.samples[index].episode] += len(self.samples[index].positions)
        budget = self.config.sampling.max_new_tokens * (self.config.max_turns or 1)
        count = lengths.total() if average == "tokens" else len(lengths)
        expected: dict[int, Tensor] = {}
        for index in plan.samples:
            sample = self.samples[index]
            of_episode = {"sequences": lengths[sample.episode], "budget": budget}.get(average, 1)
            assert sample.advantages is not None
            expected[index] = -sample.advantages.double() / (count * of_episode)
        return expected

    def _added_up(self) -> Iterator[Pair]:
        """The gradient of the drawn tensor is the sum of those of the microbatches, and of nothing else."""
        whole = master_of(self._tensor).grad
        if whole is not None:
            yield apart(whole.float(), torch.as_tensor(self._sum), 1e-4, f"the sum of the gradients of {self._name}")

    def _part(self, plan: UpdatePlan, count: int) -> UpdatePlan:
        """The plan with so many samples of one group, the denominators as they are."""
        live = [index for index, sample in plan.samples.items() if sample.live]
        if not live or self.config.gradient_checkpointing:
            raise NotMeasured("a group whose rewards differ, and gradient_checkpointing = false")
        group = plan.samples[live[0]].key[0]
        chosen = [index for index in live if plan.samples[index].key[0] == group][:count]
        return replace(plan, samples={index: plan.samples[index] for index in chosen}, local=chosen)

    def _cuts(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Iterator[Pair]:
        """The gradient of some members of a group: in one pass with a shared prefix, and each alone."""
        part = self._part(plan, _MEMBERS)
        alone = self._gradient(replace(trainer, shares=False), part, part.longest)
        together = self._gradient(trainer, part, trainer.budget.tokens)
        yield self._same(together, alone, "together and each sequence alone")

    def _plain_pass(self, trainer: UpdateTrainer, plan: UpdatePlan) -> Iterator[Pair]:
        """The policy's gradient of one sample, by the model's own forward pass."""
        part = self._part(plan, 1)
        (index,) = part.local
        sample = plan.samples[index]
        scores = plain_scores(self.loaded, self.config.sampling, sample)
        logprobs = scores.gather(1, sample.learned_ids[:, None].to(scores.device))[:, 0]
        config = self.config.model_copy(update={"kl_coef": 0.0, "entropy_coef": 0.0, "observations": 0.0})
        first = self._gradient(replace(trainer, config=config, reference=None), part, part.longest)
        loss = (self._expected(plan)[index].to(logprobs) * logprobs).sum()
        again = torch.autograd.grad(loss, [tensor for _, tensor in self._tensors])
        second = torch.cat([gradient.float().flatten() for gradient in again])
        yield self._same(first, second, f"of sample {index} by a plain pass")

    def _same(self, first: Tensor, second: Tensor, place: str) -> Pair:
        """Compares gradients (n,) of the drawn tensors; rounding is that of the sums of the whole gradient."""
        gradients = [master_of(tensor).grad for tensor in trainable(self.loaded.model).values()]
        whole = math.hypot(*(norm_of(gradient) for gradient in gradients if gradient is not None))
        place = f"the gradient of {self._name} and {len(self._tensors) - 1} other tensors, {place}"
        return apart(first, second, 5 * self._rounding, place, 0.1 * self._rounding * whole)

    def _gradient(self, trainer: UpdateTrainer, plan: UpdatePlan, tokens: int) -> Tensor:
        """(n,) of the drawn tensors, by the run's own passes of so many tokens each."""
        tensors = [tensor for _, tensor in self._tensors]
        total = torch.zeros(sum(map(torch.numel, tensors)), device=self.loaded.device)
        with precision(trainer.loaded, trainer.config):
            for batch in trainer.cut(plan, tokens):
                loss, _ = microbatch_loss(trainer, plan, batch.to(trainer.loaded.device))
                total += torch.cat([part.float().flatten() for part in torch.autograd.grad(loss, tensors)])
        return total
