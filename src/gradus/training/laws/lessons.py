"""What SFT and distillation learn, again: the text of answers, the order of episodes, and the gradient and optimizer's step by a plain pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradus.core import Episode, Renderer, Task
from gradus.core.records import FAULTS
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.engine.prepare import precision
from gradus.training.laws.draws import check_size, plain_scores, read_logprobs
from gradus.training.laws.movement import Movement
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, apart
from gradus.training.laws.update import SumWatch, flat_gradients, is_exact
from gradus.training.lesson_config import LessonConfig

_EPISODES = 10_000  # of a set whose order is looked at as a whole
_FEW = 12  # episodes of which two shuffles may be equal by chance
_LACKING = 2.0**-20  # of a distribution's sum: rounding
Samples = Sequence[TrainingSample]


def lesson_text(
    renderer: Renderer, episodes: Sequence[Episode], batch: Samples, config: LessonConfig
) -> Iterator[Pair]:
    """The learned tokens of each answer in a batch are its text and the token that ends it; those of an invalid one are not learned."""
    learned: dict[tuple[int, int], list[int]] = {}
    for sample in batch:
        if not config.history_noise:
            stands = sample.learned_ids.equal(sample.ids[sample.positions])
            yield Pair(stands, True, 0.0, f"episode {sample.episode}: whether it learns the tokens that it reads")
        for turn, token in zip(ints(sample.turns), ints(sample.learned_ids), strict=True):
            learned.setdefault((sample.episode, turn), []).append(token)
    for number in sorted({sample.episode for sample in batch}):
        episode = episodes[number]
        for turn in episode.turns if episode.stop not in FAULTS else ():
            ids = learned.get((number, turn.index), [])
            place = f"episode {number}, turn {turn.index}"
            if ids or config.short_turns is None:
                yield Pair(bool(ids), turn.valid, 0.0, f"{place}: whether it is learned")
            if ids and turn.asked is None and not episode.tools:
                said = renderer.decode(ids).strip()
                yield Pair(
                    turn.action.strip() in said,
                    True,
                    0.0,
                    f"{place}: whether the learned targets are the answer's text",
                )
                ends = ids[-1] in renderer.stop_ids
                yield Pair(ends, not turn.cut, 0.0, f"{place}: whether the token that ends an answer is learned")


def order_of_lessons(
    epochs: Sequence[Sequence[Samples]], samples: Samples, training: Sequence[Episode]
) -> Iterator[Pair]:
    """Samples are of all the episodes that are not held out; an epoch's batches have each of them once, the next one's in another order."""
    usable = [episode for episode in training if episode.stop not in FAULTS]
    taught = sum(any(turn.valid and (turn.action or not turn.cut) for turn in episode.turns) for episode in usable)
    numbers = {sample.episode for sample in samples}
    place = "the episodes that are trained on, of those that are not held out for validation"
    yield Pair(len(numbers), taught, 0.0, place)
    orders = [list(dict.fromkeys(each.episode for batch in epoch for each in batch)) for epoch in epochs]
    for epoch, order in zip(epochs, orders, strict=True):
        taken = sorted((each.episode, each.key) for batch in epoch for each in batch)
        parted = set(numbers) ^ set(order)
        place = f"episodes that an epoch lacks or should not have ({sorted(parted)[:3]})"
        yield Pair(len(parted), 0.0, 0.0, place)
        yield Pair(len(taken), len(samples), 0.0, "the samples of an epoch, each once")
    if len(orders) > 1 and len(numbers) >= _FEW:
        yield Pair(orders[0] == orders[1], False, 0.0, "whether two epochs have their episodes in one order")


def few_enough(samples: Samples) -> bool:
    """Says whether two epochs of samples may be looked at as a whole."""
    return len(samples) <= _EPISODES


def tasks_in_turn(tasks: Sequence[Task], asked: Sequence[Task], step: int, size: int) -> Iterator[Pair]:
    """A step of distillation asks the tasks that follow those of the steps before it; no task comes twice."""
    expected = tasks[size * step - size : size * step]
    agreeing = sum(one == other for one, other in zip(expected, asked, strict=False))
    yield Pair(len(asked), len(expected), 0.0, f"the tasks of step {step}")
    yield Pair(
        agreeing,
        len(expected),
        0.0,
        f"the tasks of step {step} that are the next ones in the order of tasks, none of them twice",
    )


def plain_likelihood(loaded: LoadedModel, sample: TrainingSample) -> Tensor:
    """The negative log-likelihood of what a sample learns, by a plain pass."""
    scores = plain_scores(loaded, SamplingConfig(), sample)
    return -scores.gather(1, sample.learned_ids[:, None].to(scores.device)).sum()


def plain_divergence(
    loaded: LoadedModel, teacher: LoadedModel | None, name: str, temperature: float, sample: TrainingSample
) -> Tensor:
    """The divergence of a student from its teacher over the tokens of a sample, by a plain pass and the sum over all words."""
    sampling, bare = SamplingConfig(temperature=temperature), replace(sample, legal=None)
    q = plain_scores(loaded, sampling, bare)
    if teacher is not None:
        with torch.no_grad():
            p = plain_scores(teacher, sampling, bare).exp()
    else:
        if sample.soft is None or float((1.0 - sample.soft[1].sum(1)).abs().max()) > _LACKING:
            raise NotMeasured("a teacher that states all that it may say")
        ids, chances = (part.to(q.device) for part in sample.soft)
        p = torch.zeros_like(q).scatter_add(1, ids, chances.to(q))
    if name == "reverse":
        return (q.exp() * (q - p.log())).sum()
    if name == "forward":
        return (torch.xlogy(p, p) - p * q).sum()
    mixture = (p + q.exp()) / 2
    return (torch.xlogy(p, p) - torch.xlogy(p, mixture) + q.exp() * (q - mixture.log())).sum() / 2


@dataclass
class LessonLaws:
    """Watches a step in a single process, and changes nothing.

    ``plain``: the sum of the losses of a sample's tokens. ``part``: the run's own loss of some samples.
    """

    runner: LawRunner
    loaded: LoadedModel
    config: LessonConfig
    samples: Samples
    plain: Callable[[TrainingSample], Tensor]
    part: Callable[[Samples], Tensor]

    def begins(self) -> None:
        """Before the passes."""
        self._sums = SumWatch(self.loaded, self.config.seed, self.runner.step)
        self._sums.begins()

    def passed(self, optimizer: torch.optim.Optimizer, lr: float, tokens: int) -> None:
        """Between the passes, which had so many learned ``tokens``, and the optimizer's step."""
        self.runner.check("loss", self._sums.again)
        self.runner.check("loss", self._gradient_again, tokens)
        self._movement = Movement(self.loaded, optimizer, self.config, lr, self.runner.step)

    def moved(self, norm: float) -> None:
        """Behind the optimizer's step."""
        self.runner.check("optimizer", self._movement.again, norm)

    def _gradient_again(self, tokens: int) -> Iterator[Pair]:
        """The passes have all learned tokens, and the loss and the gradient of one sample are those of a plain pass."""
        n_tokens = sum(sample.actions for sample in self.samples)
        yield Pair(tokens, n_tokens, 0.0, "the learned tokens of the step's passes")
        if self.config.gradient_checkpointing:
            raise NotMeasured("gradient_checkpointing = false")
        sample = self.samples[0]
        check_size(self.loaded, len(sample))
        tensors = [tensor for _, tensor in self._sums.tensors]
        with precision(self.loaded, self.config):
            loss = self.part([sample])
            first = flat_gradients(torch.autograd.grad(loss, tensors, allow_unused=True), tensors)
        again = self.plain(sample) / n_tokens
        if self.config.observations:
            again = again - self.config.observations * read_logprobs(self.loaded, sample).sum() / n_tokens
        rounding = 1e-4 if is_exact(self.loaded, self.config) else 0.1
        share = sample.actions / n_tokens
        place = "one sample's part of the loss, by a plain pass (learned tokens, and observations by their weight)"
        value = float(again.detach())
        yield Pair(float(loss.detach()), value, rounding * (share + abs(value)), place)
        second = flat_gradients(torch.autograd.grad(again, tensors, allow_unused=True), tensors)
        place = f"the gradient of {self._sums.name} and {len(tensors) - 1} other tensors, of one sample by a plain pass"
        yield apart(first, second, 5 * rounding, place, rounding * share)


def lowest_again(metrics: Path, best: float | None) -> Iterator[Pair]:
    """The loss that chose the best weights is the lowest of the validations in the metrics."""
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    losses = [record["validation_loss"] for record in records if record.get("validation_loss") is not None]
    if not losses or best is None:
        raise NotMeasured("a validation")
    yield Pair(best, min(losses), 0.0, "the lowest validation loss")
