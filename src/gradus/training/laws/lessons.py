"""What SFT and distillation learn, again: the text of answers, the order of episodes, and the gradient and optimizer's step by a plain pass."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradus.core import AnswerDistribution, Episode, Renderer, Task, child_rng
from gradus.core.records import FAULTS
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.sampling import SamplingConfig
from gradus.training.data.sequences import TrainingSample, ints
from gradus.training.engine.prepare import precision
from gradus.training.laws.draws import STRIDE, beginning, plain_logprobs, plain_scores, read_logprobs
from gradus.training.laws.runner import Episodes, LawRunner, NotMeasured, Pair, Pairs, Samples, holds
from gradus.training.laws.step import StepLaws
from gradus.training.laws.tokens import texts_again, texts_shown
from gradus.training.lesson_config import DistillConfig, LessonConfig

_EPISODES = 10_000  # of a set whose order is looked at as a whole
_FEW = 12  # episodes of which two shuffles may be equal by chance
_LACKING = 2.0**-20  # of a distribution's sum: rounding
_READ = 4  # samples of a step whose conversation is looked at
_SAMPLES = 3  # of a step whose loss is computed again
_ERRORS = 6.0  # standard errors
_ANSWERS, _TURNS = 512, 2  # that a teacher may state in a turn, and the turns of a sample that are looked at


def lesson_text(
    renderer: Renderer, episodes: Episodes, batch: Samples, config: LessonConfig, turns: int | None
) -> Pairs:
    """The learned tokens of each answer in a batch are its text and the token that ends it; those of an invalid one are not learned.

    ``turns``: of each sample that are learned, None for all. What stands before a sample's last answer holds the conversation before it.
    """
    learned: dict[tuple[int, int], list[int]] = {}
    for sample in batch:
        place = f"episode {sample.episode}"
        stands = bool(config.history_noise) or sample.learned_ids.equal(sample.ids[sample.positions])
        yield holds(stands, f"{place} learns the tokens that it reads")
        numbers, targets = ints(sample.turns), ints(sample.learned_ids)
        count, most = len(set(numbers)), turns or len(numbers)
        yield Pair(
            count,
            min(count, most),
            f"{place}: turns that are learned in a step that is short (short_turns_share) or not",
        )
        for turn, token in zip(numbers, targets, strict=True):
            learned.setdefault((sample.episode, turn), []).append(token)
    for sample in batch[:_READ]:
        yield from _conversation_again(renderer, episodes[sample.episode], sample, config)
    pairs = [(number, turn) for number in {sample.episode for sample in batch} for turn in episodes[number].turns]
    for number, turn in pairs:
        ids, place = learned.get((number, turn.index), []), f"episode {number}, turn {turn.index}"
        if ids or turns is None:
            yield holds(bool(ids), f"{place} is learned", turn.valid)
        if ids and turn.asked is None and not episodes[number].tools:
            text = renderer.decode(ids).strip()
            yield holds(turn.action.strip() in text, f"{place}: the learned targets are the answer's text")
            yield holds(
                ids[-1] in renderer.stop_ids, f"{place}: the token that ends an answer is learned", not turn.cut
            )


def _conversation_again(renderer: Renderer, episode: Episode, sample: TrainingSample, config: LessonConfig) -> Pairs:
    """What stands before a sample's last learned answer holds what was shown since the last restart, and the answers to it."""
    last = int(sample.turns.max())
    first = max((turn.index for turn in episode.turns[: last + 1] if turn.restart), default=0)
    texts = [text for turn in episode.turns[first : last + 1] for text in texts_shown(turn)]
    if not config.history_noise and not episode.tools:
        texts += [turn.action for turn in episode.turns[first:last]]
    start = int(sample.positions[sample.turns == last].min())
    place = f"episode {sample.episode}, turn {last}: the context (history, prompt)"
    yield from texts_again(renderer, ints(sample.ids[:start]), texts, place)


def noise_again(batch: Samples, samples: Samples, share: float) -> Pairs:
    """The share of answer tokens that the settings name is read as tokens that any of the ``samples`` has at that place, but for chance."""
    pools: dict[int, set[int]] = {}
    for sample in samples:
        for offset, token in zip(ints(sample.offsets), ints(sample.learned_ids), strict=True):
            pools.setdefault(offset, set()).add(token)
    # A word of a pool of two is drawn again half of the time.
    rates = [share * (1 - 1 / len(pools[offset])) for sample in batch for offset in ints(sample.offsets)]
    chance = _ERRORS * math.sqrt(sum(rate * (1 - rate) for rate in rates)) + 1
    changed = sum(int((sample.ids[sample.positions] != sample.learned_ids).sum()) for sample in batch)
    yield Pair(changed, sum(rates), "answer tokens that are read as other ones (history_noise)", chance)


def turns_again(config: LessonConfig, *key: int) -> int | None:
    """How many turns a step learns, by the coin of its place; None for all."""
    short = child_rng(config.seed, "sft", "short", *key).random() < config.short_turns_share
    return config.short_turns if short else None


def order_of_lessons(epochs: Sequence[Sequence[Samples]], samples: Samples, training: Episodes) -> Pairs:
    """Samples are of all the episodes that are not held out; an epoch's batches have each of them once, the next one's in another order."""
    usable = [episode for episode in training if episode.stop not in FAULTS]
    taught = sum(any(turn.valid and (turn.action or not turn.cut) for turn in episode.turns) for episode in usable)
    numbers = {sample.episode for sample in samples}
    yield Pair(len(numbers), taught, "the episodes that are trained on, of those that are not held out for validation")
    orders = [[each.episode for batch in epoch for each in batch] for epoch in epochs]
    for order in orders:
        parted = numbers ^ set(order)
        yield Pair(len(parted), 0, f"episodes that an epoch lacks or should not have ({sorted(parted)[:3]})")
        yield Pair(len(order), len(samples), "the samples of an epoch, each once")
    if len(orders) > 1 and len(numbers) >= _FEW:
        yield holds(orders[0] == orders[1], "two epochs have their episodes in one order", False)


def few_enough(samples: Samples) -> bool:
    """Says whether two epochs of samples may be looked at as a whole."""
    return len(samples) <= _EPISODES


def rolled_again(
    tasks: Sequence[Task], episodes: Episodes, config: DistillConfig, step: int, student: str, limit: int
) -> Pairs:
    """A step of distillation rolls out the tasks that follow those of the steps before it, some by the student, of at most so many turns."""
    size = config.batch_size
    expected = tasks[size * step - size : size * step]
    agreeing = sum(task == episode.task for task, episode in zip(expected, episodes, strict=False))
    yield Pair(len(episodes), len(expected), f"the tasks of step {step}")
    yield Pair(agreeing, len(expected), f"the tasks of step {step} that are the next ones in the order of tasks")
    share = sum(episode.policy == student for episode in episodes) / len(episodes)
    place = f"the share of the episodes of step {step} that the student rolled out (on_policy)"
    yield Pair(share, config.on_policy, place, 0.5 / len(episodes) + 1e-9)
    turns = min(turns_again(config, step) or limit, limit)
    longest = max(len(episode.turns) for episode in episodes)
    yield Pair(longest, min(longest, turns), f"the turns of the longest episode of step {step} (short_turns_share)")


def stated_again(
    renderer: ChatRenderer, sample: TrainingSample, stated: Sequence[AnswerDistribution], logprobs: Tensor | None = None
) -> Pairs:
    """A token's target is its share among the teacher's whole answers to this turn that begin like its answer; some turns.

    ``logprobs`` (A,): what the teacher has of the tokens, in place of targets that the sample carries.
    """
    for turn in sorted(set(ints(sample.turns)))[-_TURNS:]:
        if not stated[turn] or math.prod(len(span.answers) for span in stated[turn]) > _ANSWERS:
            continue
        begun: list[tuple[Sequence[int], float]] = []
        for words in product(*[zip(span.answers, span.probabilities, strict=True) for span in stated[turn]]):
            text, chance = " ".join(word for word, _ in words), math.prod([chance for _, chance in words])
            begun.append((renderer.encode_answer(text), float(chance)))
        rows = ints((sample.turns == turn).nonzero()[:, 0])
        for place, (row, token) in enumerate(zip(rows, ints(sample.learned_ids[rows]), strict=True)):
            shares: dict[int, float] = {}
            for spelled, chance in begun:
                shares[spelled[place]] = shares.get(spelled[place], 0.0) + chance
            if logprobs is None:
                assert sample.soft is not None
                ids, chances = (part[row] for part in sample.soft)
                word = max(shares, key=lambda each: shares[each])
                first = float(chances[ids == word].sum())
            else:
                word, first = token, float(logprobs[row].exp().nan_to_num(0.0))
            where = f"turn {turn}, token {place}: the teacher's probability of a token (the target), from the answers that it states"
            yield Pair(first, shares.get(word, 0.0) / math.fsum(shares.values()), where, 1e-4)
            begun = [(spelled, chance) for spelled, chance in begun if spelled[place] == token]
            if not math.fsum(chance for _, chance in begun):
                break


def plain_likelihood(loaded: LoadedModel, sample: TrainingSample) -> Tensor:
    """The negative log-likelihood of what a sample learns, by a plain pass."""
    return -plain_logprobs(loaded, SamplingConfig(), sample).sum()


def plain_divergence(
    loaded: LoadedModel, teacher: LoadedModel | None, name: str, temperature: float, sample: TrainingSample
) -> Tensor:
    """The divergence of a student from its teacher over the tokens of a sample, by a plain pass and the sum over all words."""
    sampling, bare = SamplingConfig(temperature=temperature), replace(sample, legal=None)
    q = plain_scores(loaded, sampling, bare)
    if teacher is not None:
        with torch.no_grad():
            p = plain_scores(teacher, sampling, bare)
    else:
        if sample.soft is None or float((1.0 - sample.soft[1].sum(1)).abs().max()) > _LACKING:
            raise NotMeasured("a teacher that states all that it may say")
        ids, chances = (part.to(q.device) for part in sample.soft)
        p = torch.zeros_like(q).scatter_add(1, ids, chances.to(q)).log().clamp(min=-1e30)
    if name in ("forward", "reverse"):
        return _kl(p, q) if name == "forward" else _kl(q, p)
    mixture = torch.logaddexp(p, q) - math.log(2)
    return (_kl(p, mixture) + _kl(q, mixture)) / 2


def _kl(first: Tensor, second: Tensor) -> Tensor:
    """The divergence of log-probs (A, V) from others, added up."""
    return (first.exp() * (first - second)).sum()


class LessonLaws(StepLaws):
    """Watches a step of SFT or distillation.

    ``plain``: the sum of the losses of a sample's tokens. ``part``: the run's own loss of some samples.
    """

    def __init__(
        self,
        runner: LawRunner,
        loaded: LoadedModel,
        config: LessonConfig,
        plain: Callable[[TrainingSample], Tensor],
        part: Callable[[Samples], Tensor],
    ) -> None:
        super().__init__(runner, loaded, config)
        self.config, self._plain, self._part = config, plain, part

    def passed(self, samples: Samples, optimizer: torch.optim.Optimizer, lr: float, tokens: int) -> None:
        """Between the passes, which had so many learned ``tokens``, and the optimizer's step."""
        self.runner.check("loss", self.sums_again)
        self.runner.check("loss", self._gradient_again, samples, tokens)
        self.moves(optimizer, self.config, lr)

    def _gradient_again(self, samples: Samples, tokens: int) -> Pairs:
        """The passes have all learned tokens, and the loss and the gradient of some samples are those of plain passes."""
        n_tokens = sum(sample.actions for sample in samples)
        yield Pair(tokens, n_tokens, "the learned tokens of the step's passes")
        if self.config.gradient_checkpointing:
            raise NotMeasured("gradient_checkpointing = false")
        start = self.runner.step * STRIDE % len(samples)
        some = [beginning(self.loaded, sample) for sample in (*samples[start:], *samples[:start])[:_SAMPLES]]
        some = [sample for sample in some if sample.actions]
        if not some:
            raise NotMeasured("an answer behind a shorter prompt")
        # A passage back through the model costs twice as much as one forward, so gradients are compared once.
        is_first = self.runner.step == 1
        with torch.set_grad_enabled(is_first), precision(self.loaded, self.config):
            loss = self._part(some)
        with torch.set_grad_enabled(is_first):
            again = torch.stack([self._plain(sample) for sample in some]).sum() / n_tokens
            if self.config.observations:
                read = torch.cat([read_logprobs(self.loaded, sample) for sample in some])
                again = again - self.config.observations * read.sum() / n_tokens
        value, share = float(again.detach()), sum(sample.actions for sample in some) / n_tokens
        place = f"the loss of {len(some)} samples, by plain passes (tokens read and their positions, targets, observations by their weight)"
        yield Pair(float(loss.detach()), value, place, self.rounding * (share + abs(value)))
        if is_first:
            first, second = self.gradient([loss]), self.gradient([again])
            yield self.same_gradient(first, second, f"of {len(some)} samples by plain passes")


def held_out_again(loss: float, plain: Callable[[TrainingSample], Tensor], samples: Samples, rounding: float) -> Pairs:
    """The validation loss of some samples is the mean of their tokens, by plain passes."""
    with torch.no_grad():
        again = float(sum(plain(sample) for sample in samples)) / sum(sample.actions for sample in samples)
    yield Pair(
        loss, again, "the validation (held-out) loss, a mean over the learned tokens", rounding * (1 + abs(again))
    )


def lowest_again(metrics: Path, best: float | None) -> Pairs:
    """The loss that chose the best weights is the lowest of the validations in the metrics."""
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    losses = [record["validation_loss"] for record in records if record.get("validation_loss") is not None]
    if not losses or best is None:
        raise NotMeasured("a validation")
    yield Pair(best, min(losses), "the lowest validation loss")
